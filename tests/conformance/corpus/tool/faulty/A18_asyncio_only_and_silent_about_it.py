"""Planted: it needs asyncio and does not say so."""

import asyncio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Wait:
    name = "wait_a_bit"
    description = "Waits a bit."

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        await asyncio.sleep(0)
        return ToolResult(output="waited")


async def mount(coordinator, config):
    await coordinator.mount("tools", Wait())
