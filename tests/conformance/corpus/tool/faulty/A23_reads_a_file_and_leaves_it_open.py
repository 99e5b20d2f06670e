"""Reads notes that were stored before.

Planted: every read opens the file and keeps it open until cleanup; the number of open files grows with every call.
"""

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
        self.opened = []

    async def execute(self, input):
        length = input.get("length", 1000)
        if isinstance(length, float) and length.is_integer():
            length = int(length)
        if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length <= 1000:
            return ToolResult(success=False, error={"message": "length has to be a number from 0 to 1000"})
        file = open(self.path, encoding="utf-8")
        self.opened.append(file)
        return ToolResult(output=file.read(length))

    async def close(self):
        while self.opened:
            self.opened.pop().close()
        if os.path.exists(self.path):
            os.unlink(self.path)


async def mount(coordinator, config):
    tool = Notes()
    await coordinator.mount("tools", tool)
    return tool.close
