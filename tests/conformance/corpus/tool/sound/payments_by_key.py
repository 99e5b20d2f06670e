"""Pays, and finds a payment again by the key of its call."""

import json
from pathlib import Path

from amplifier import ToolResult
from amplifier.contracts import Done, NotDone, current_call

__amplifier_module_type__ = "tool"


class Pay:
    name = "pay"
    description = "Pays an amount to someone."
    repeatable = False

    def __init__(self, book: Path) -> None:
        self._book = book

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"to": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
            "required": ["to", "amount"],
        }

    def _payments(self):
        return [json.loads(line) for line in self._book.read_text().splitlines()] if self._book.exists() else []

    async def execute(self, input):
        to, amount = input.get("to"), input.get("amount")
        if not isinstance(to, str) or not isinstance(amount, int) or isinstance(amount, bool) or amount < 1:
            return ToolResult(success=False, error={"message": "expected a text 'to' and an amount above 0"})
        call = current_call()
        key = None if call is None else call.idempotency_key
        with self._book.open("a") as book:
            book.write(json.dumps({"key": key, "to": to, "amount": amount}) + "\n")
        return ToolResult(output="paid")

    async def reconcile(self, input, call):
        if not self._book.exists():
            return NotDone()
        if any(payment["key"] == call.idempotency_key for payment in self._payments()):
            return Done("paid")
        return NotDone()


async def mount(coordinator, config):
    await coordinator.mount("tools", Pay(Path("payments.jsonl").absolute()))
