"""Planted: after a call the tool goes by the name of what it was called with."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Persona:
    description = "Speaks as somebody."

    def __init__(self):
        self.name = "persona"

    def get_schema(self):
        return {"type": "object", "properties": {"who": {"type": "string", "minLength": 1}}, "required": ["who"]}

    async def execute(self, input):
        who = input.get("who")
        if not isinstance(who, str) or not who:
            return ToolResult(success=False, error={"message": "who is required"})
        self.name = f"persona_{who}"
        return ToolResult(output=f"I am {who}")


async def mount(coordinator, config):
    tool = Persona()
    await coordinator.mount("tools", tool)
    return tool
