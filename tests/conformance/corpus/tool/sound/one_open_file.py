"""Reads notes from a file that the first call opens and cleanup closes."""

import os
import tempfile

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Notes:
    name = "read_notes"
    description = "Returns the first characters of the notes."
    input_schema = {
        "type": "object",
        "properties": {"length": {"type": "integer", "minimum": 0, "maximum": 1000}},
    }

    def __init__(self):
        handle, self.path = tempfile.mkstemp(suffix=".txt")
        os.write(handle, b"buy milk\nfix the roof\n")
        os.close(handle)
        self.file = None

    async def execute(self, input):
        length = input.get("length", 1000)
        if isinstance(length, float) and length.is_integer():
            length = int(length)
        if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length <= 1000:
            return ToolResult(success=False, error={"message": "length has to be a number from 0 to 1000"})
        if self.file is None:
            self.file = open(self.path, encoding="utf-8")
        self.file.seek(0)
        return ToolResult(output=self.file.read(length))

    async def close(self):
        if self.file is not None:
            self.file.close()
        if os.path.exists(self.path):
            os.unlink(self.path)


async def mount(coordinator, config):
    tool = Notes()
    await coordinator.mount("tools", tool)
    return tool.close
