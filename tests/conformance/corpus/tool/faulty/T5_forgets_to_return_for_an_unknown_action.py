"""Planted: for an action it does not know it returns nothing."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Case:
    name = "letter_case"
    description = "Changes the case of a text: upper or lower."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"action": {"type": "string", "enum": ["upper", "lower"]}, "text": {"type": "string"}},
            "required": ["action", "text"],
        }

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text must be a string"})
        if input.get("action") == "upper":
            return ToolResult(output=text.upper())
        if input.get("action") == "lower":
            return ToolResult(output=text.lower())


async def mount(coordinator, config):
    await coordinator.mount("tools", Case())
