"""Planted: the error holds the exception itself."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Parse:
    name = "parse_number"
    description = "Reads a number."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        try:
            return ToolResult(output=int(input["text"]))
        except Exception as error:
            return ToolResult(success=False, output="failed", error={"message": error})


async def mount(coordinator, config):
    await coordinator.mount("tools", Parse())
