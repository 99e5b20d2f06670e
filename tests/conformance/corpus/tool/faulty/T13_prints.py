"""Planted: it prints what it does."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Ping:
    name = "ping"
    description = "Answers pong."

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        print("ping", input)
        return ToolResult(output="pong")


async def mount(coordinator, config):
    await coordinator.mount("tools", Ping())
