"""Cuts a text.

Planted: the schema names "suffix", but execute knows only "text" and "width" and refuses other keys.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Cut:
    name = "cut_text"
    description = "Cuts a text to a width."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "width": {"type": "integer", "minimum": 0},
                "suffix": {"type": "string"},
            },
            "required": ["text"],
            "additionalProperties": False,
        }

    async def execute(self, input):
        unknown = sorted(set(input) - {"text", "width"})
        if unknown:
            return ToolResult(success=False, error={"message": f"unknown keys: {', '.join(unknown)}"})
        text, width = input.get("text"), input.get("width", 80)
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text has to be a string"})
        if isinstance(width, bool) or not isinstance(width, (int, float)) or width < 0 or width != int(width):
            return ToolResult(success=False, error={"message": "width has to be a number of at least 0"})
        return ToolResult(output=text[: int(width)])


async def mount(coordinator, config):
    await coordinator.mount("tools", Cut())
