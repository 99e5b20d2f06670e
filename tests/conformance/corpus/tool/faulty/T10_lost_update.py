"""Planted: two calls at the same time count as one."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Counter:
    name = "count"
    description = "Counts its calls."

    def __init__(self):
        self._count = 0

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        count = self._count
        await anyio.sleep(0.001)
        self._count = count + 1
        return ToolResult(output=self._count)


async def mount(coordinator, config):
    await coordinator.mount("tools", Counter())
