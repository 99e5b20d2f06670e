"""Planted: the schema allows null for the language, the tool does not."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Greet:
    name = "greet"
    description = "Greets somebody in a language."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"who": {"type": "string"}, "language": {"type": ["string", "null"]}},
            "required": ["who", "language"],
        }

    async def execute(self, input):
        who, language = input.get("who"), input.get("language")
        if not isinstance(who, str):
            return ToolResult(success=False, error={"message": "who must be a string"})
        if not isinstance(language, str):
            return ToolResult(success=False, error={"message": f"language must be a string, not {language!r}"})
        return ToolResult(output=f"{language}: {who}")


async def mount(coordinator, config):
    await coordinator.mount("tools", Greet())
