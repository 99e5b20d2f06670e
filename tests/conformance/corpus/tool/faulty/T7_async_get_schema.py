"""Planted: get_schema has to be awaited."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Echo:
    name = "echo"
    description = "Echoes its input."

    async def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        return ToolResult(output=repr(input))


async def mount(coordinator, config):
    await coordinator.mount("tools", Echo())
