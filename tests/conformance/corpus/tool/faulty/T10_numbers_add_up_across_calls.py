"""Planted: two calls add into the same sum."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Sum:
    name = "sum_up"
    description = "Adds whole numbers."

    def get_schema(self):
        numbers = {"type": "array", "items": {"type": "integer"}}
        return {"type": "object", "properties": {"numbers": numbers}, "required": ["numbers"]}

    async def execute(self, input):
        numbers = input.get("numbers")
        if not isinstance(numbers, list):
            return ToolResult(success=False, error={"message": "numbers must be a list"})
        self._sum = 0
        for number in numbers:
            if isinstance(number, int):
                self._sum += number
            await anyio.lowlevel.checkpoint()
        return ToolResult(output=self._sum)


async def mount(coordinator, config):
    await coordinator.mount("tools", Sum())
