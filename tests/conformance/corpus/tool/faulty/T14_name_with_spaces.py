"""Planted: the name is a sentence."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Ping:
    name = "Answer With Pong"
    description = "Answers pong."

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        return ToolResult(output="pong")


async def mount(coordinator, config):
    await coordinator.mount("tools", Ping())
