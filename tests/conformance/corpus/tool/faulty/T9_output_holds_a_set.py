"""Planted: the output holds a set."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Letters:
    name = "letters"
    description = "Says which letters a text has."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        text = str(input.get("text", ""))
        return ToolResult(output={"length": len(text), "letters": set(text)})


async def mount(coordinator, config):
    await coordinator.mount("tools", Letters())
