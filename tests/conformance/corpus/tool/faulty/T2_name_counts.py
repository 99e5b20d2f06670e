"""Planted: the name gets another number each time it is read."""

import itertools

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Numbered:
    description = "Says hello."

    def __init__(self):
        self._numbers = itertools.count()

    @property
    def name(self):
        return f"hello_{next(self._numbers)}"

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        return ToolResult(output="hello")


async def mount(coordinator, config):
    await coordinator.mount("tools", Numbered(), name="hello")
