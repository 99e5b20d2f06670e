"""Planted: execute is a plain function, so its result cannot be awaited."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Upper:
    name = "upper"
    description = "Writes a text in capitals."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text must be a string"})
        return ToolResult(output=text.upper())


async def mount(coordinator, config):
    await coordinator.mount("tools", Upper(), name="upper")
