"""Planted: a document is written piece by piece into its place."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Write:
    name = "write_report"
    description = "Writes a report to report.txt."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text must be a string"})
        async with await anyio.open_file("report.txt", "w") as file:
            for piece in ("<report>", text.encode(errors="replace").decode(), "</report>"):
                await file.write(piece)
                await file.flush()
        return ToolResult(output="written")


async def mount(coordinator, config):
    await coordinator.mount("tools", Write())
