"""Planted: execute takes the keys of the input as keywords instead of the input."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Repeat:
    name = "repeat"
    description = "Repeats a text."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, *, text=""):
        return ToolResult(output=text + text)


async def mount(coordinator, config):
    await coordinator.mount("tools", Repeat())
