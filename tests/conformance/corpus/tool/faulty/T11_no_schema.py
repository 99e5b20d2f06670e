"""Planted: the tool gives no schema."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Ping:
    name = "ping"
    description = "Answers pong."

    async def execute(self, input):
        return ToolResult(output="pong")


async def mount(coordinator, config):
    await coordinator.mount("tools", Ping())
