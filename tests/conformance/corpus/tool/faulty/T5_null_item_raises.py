"""Planted: a list with something else than texts in it raises."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Join:
    name = "join_texts"
    description = "Joins texts with a separator."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "parts": {"type": "array", "items": {"type": "string"}},
                "separator": {"type": "string", "default": ", "},
            },
            "required": ["parts"],
        }

    async def execute(self, input):
        parts, separator = input.get("parts"), input.get("separator", ", ")
        if not isinstance(parts, list) or not isinstance(separator, str):
            return ToolResult(success=False, error={"message": "parts must be a list, separator a string"})
        return ToolResult(output=separator.join(parts))


async def mount(coordinator, config):
    await coordinator.mount("tools", Join())
