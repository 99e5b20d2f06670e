"""Planted: a cancelled call leaves the tool busy, and it refuses everybody after that."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Exclusive:
    name = "exclusive"
    description = "Does one thing at a time."

    def __init__(self):
        self._busy = False

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        if self._busy:
            return ToolResult(success=False, error={"message": "busy"})
        self._busy = True
        await anyio.sleep(0.001)
        self._busy = False
        return ToolResult(output="done")


async def mount(coordinator, config):
    await coordinator.mount("tools", Exclusive())
