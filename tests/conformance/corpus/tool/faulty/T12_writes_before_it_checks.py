"""Planted: the file is there before the input is refused."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Save:
    name = "save_note"
    description = "Saves a note."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        target = anyio.Path("note.md")
        text = input.get("text")
        await target.write_text("# note\n")
        if not isinstance(text, str):
            await target.write_text("# refused\n")
            return ToolResult(success=False, error={"message": "text must be a string"})
        return ToolResult(output="saved")


async def mount(coordinator, config):
    await coordinator.mount("tools", Save())
