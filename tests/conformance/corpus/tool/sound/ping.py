"""The smallest tool that keeps the contract."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Ping:
    name = "ping"
    description = "Answers pong."

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        return ToolResult(output="pong")


async def mount(coordinator, config):
    await coordinator.mount("tools", Ping())
