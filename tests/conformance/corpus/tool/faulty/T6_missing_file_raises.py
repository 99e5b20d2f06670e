"""Planted: a file that is not there leaves execute as an OSError."""

from pathlib import Path

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Head:
    name = "head"
    description = "Shows the beginning of a file."

    def get_schema(self):
        return {"type": "object", "properties": {"document": {"type": "string"}}, "required": ["document"]}

    async def execute(self, input):
        document = input.get("document")
        if not isinstance(document, str) or "\0" in document:
            return ToolResult(success=False, error={"message": "document must be the name of a file"})
        text = await anyio.Path(Path(document)).read_text(errors="replace")
        return ToolResult(output=text[:200])


async def mount(coordinator, config):
    await coordinator.mount("tools", Head())
