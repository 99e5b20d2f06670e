"""Planted: the schema describes a text, not an object."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Echo:
    name = "echo"
    description = "Echoes its input."

    def get_schema(self):
        return {"type": "string", "description": "the text"}

    async def execute(self, input):
        return ToolResult(output=repr(input))


async def mount(coordinator, config):
    return Echo()
