"""Planted: it takes its options out of the input."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Format:
    name = "format_text"
    description = "Formats a text."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"text": {"type": "string"}, "width": {"type": "integer", "default": 20}},
            "required": ["text"],
        }

    async def execute(self, input):
        width = input.pop("width", 20)
        text = input.get("text")
        if not isinstance(text, str) or not isinstance(width, int):
            return ToolResult(success=False, error={"message": "text must be a string, width a whole number"})
        return ToolResult(output=text[:width])


async def mount(coordinator, config):
    await coordinator.mount("tools", Format())
