"""Writes a report to a temporary file and returns the file's name; cleanup removes the files."""

import os
import tempfile

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Report:
    name = "write_report"
    description = "Writes a text to a new temporary file and returns its name."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def __init__(self):
        self.paths = []

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text has to be a string"})
        handle, path = tempfile.mkstemp(suffix=".txt")
        self.paths.append(path)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return ToolResult(output={"path": path, "name": os.path.basename(path)})

    async def close(self):
        while self.paths:
            path = self.paths.pop()
            if os.path.exists(path):
                os.unlink(path)


async def mount(coordinator, config):
    tool = Report()
    await coordinator.mount("tools", tool)
    return tool.close
