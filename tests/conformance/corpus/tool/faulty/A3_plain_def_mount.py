"""Reverses a text.

Planted: mount is a plain function that returns the tool.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Reverse:
    name = "reverse_text"
    description = "Returns the text backwards."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text has to be a string"})
        return ToolResult(output=text[::-1])


def mount(coordinator, config):
    coordinator.mount("tools", Reverse())
