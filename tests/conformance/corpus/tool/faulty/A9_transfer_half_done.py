"""Planted: a cancelled transfer has left one account and not reached the other."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Accounts:
    name = "transfer"
    description = "Moves an amount from one account to the other."

    def __init__(self):
        self._left, self._right = 100, 0

    def get_schema(self):
        return {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}

    async def execute(self, input):
        amount = input.get("amount")
        if not isinstance(amount, int):
            return ToolResult(success=False, error={"message": "amount must be a whole number"})
        self._left -= amount
        await anyio.sleep(0.001)
        self._right += amount
        return ToolResult(output={"left": self._left, "right": self._right})


async def mount(coordinator, config):
    await coordinator.mount("tools", Accounts())
