"""Planted: a refused input leaves the lock taken, and every later call waits for ever."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Ledger:
    name = "ledger"
    description = "Books an amount."

    def __init__(self):
        self._lock = anyio.Lock()
        self._sum = 0

    def get_schema(self):
        return {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}

    async def execute(self, input):
        await self._lock.acquire()
        amount = input.get("amount")
        if not isinstance(amount, int):
            return ToolResult(success=False, error={"message": "amount must be a whole number"})
        try:
            self._sum += amount
            return ToolResult(output=self._sum)
        finally:
            self._lock.release()


async def mount(coordinator, config):
    await coordinator.mount("tools", Ledger())
