"""Planted: "required" is a text instead of a list."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Echo:
    name = "echo"
    description = "Echoes a text."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": "text"}

    async def execute(self, input):
        return ToolResult(output=str(input.get("text", "")))


async def mount(coordinator, config):
    await coordinator.mount("tools", Echo())
