"""Remembers answers, refuses too many calls, counts what it does; all of that is its own business."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Square:
    name = "square"
    description = "Squares a whole number, at most 40 different ones a session."

    def __init__(self):
        self._known = {}
        self._calls = 0

    def get_schema(self):
        return {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}

    async def execute(self, input):
        self._calls += 1
        number = input.get("number")
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return ToolResult(success=False, error={"message": f"number must be a number, got {number!r:.80}"})
        if number in self._known:
            return ToolResult(output={"square": self._known[number], "cached": True, "calls": self._calls})
        if len(self._known) >= 40:
            return ToolResult(success=False, error={"message": "that is enough for one session"})
        await anyio.sleep(0.001)
        try:
            self._known[number] = number**2
        except OverflowError as error:
            return ToolResult(success=False, error={"message": str(error)})
        return ToolResult(output={"square": self._known[number], "cached": False, "calls": self._calls})


async def mount(coordinator, config):
    await coordinator.mount("tools", Square())
