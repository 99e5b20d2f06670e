"""A tool as small as it gets; mount returns it, and the kernel mounts it under its own name."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Echo:
    @property
    def name(self):
        return "echo"

    @property
    def description(self):
        return "Gives back the text it was given."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        # Lenient on purpose: whatever comes is written as text.
        return ToolResult(output=str(input.get("text", "")))


async def mount(coordinator, config):
    return Echo()
