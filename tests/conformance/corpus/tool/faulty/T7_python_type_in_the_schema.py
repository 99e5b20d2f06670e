"""Planted: a Python type stands where the schema needs the name of one."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Echo:
    name = "echo"
    description = "Echoes a text."
    input_schema = {"type": "object", "properties": {"text": {"type": str}}}

    async def execute(self, input):
        return ToolResult(output=str(input.get("text", "")))


async def mount(coordinator, config):
    return Echo()
