"""Planted: description is a method, not a property."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Ping:
    name = "ping"

    def description(self):
        return "Answers pong."

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        return ToolResult(output="pong")


async def mount(coordinator, config):
    await coordinator.mount("tools", Ping())
