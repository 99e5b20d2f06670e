"""Measures a text.

Planted: mount tries to put the tool at the mount point "hooks".
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Length:
    name = "text_length"
    description = "Returns the number of characters of a text."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        if not isinstance(input.get("text"), str):
            return ToolResult(success=False, error={"message": "text has to be a string"})
        return ToolResult(output=len(input["text"]))


async def mount(coordinator, config):
    tool = Length()
    await coordinator.mount("hooks", tool, name=tool.name)
    return None
