"""Planted: every call leaves a temporary file."""

import os
import tempfile

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Scratch:
    name = "scratch"
    description = "Measures a text."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        handle, path = tempfile.mkstemp()
        with os.fdopen(handle, "w", errors="replace") as file:
            file.write(str(input.get("text")))
        return ToolResult(output=os.path.getsize(path))


async def mount(coordinator, config):
    await coordinator.mount("tools", Scratch())
