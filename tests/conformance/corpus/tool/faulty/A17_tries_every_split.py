"""A tool with an expression that tries every way to split a run."""

import re
from amplifier import ToolResult

__amplifier_module_type__ = "tool"
_FORM = re.compile(r"^(\w+\s?)*$")


class Plain:
    name = "plain"
    description = "Say whether a text is plain words."
    input_schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text must be a string"})
        return ToolResult(success=True, output={"plain": bool(_FORM.match(text))})


async def mount(coordinator, config):
    tool = Plain()
    coordinator.mount("tools", tool, name=tool.name)

    async def cleanup():
        pass

    return cleanup
