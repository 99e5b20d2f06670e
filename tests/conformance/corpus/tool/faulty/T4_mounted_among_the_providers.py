"""Planted: the tool is mounted at another mount point."""

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
    await coordinator.mount("providers", Ping(), name="ping")

    async def cleanup():
        pass

    return cleanup
