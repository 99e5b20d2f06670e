"""Opens a file and returns the number of a handle, which another call closes; cleanup closes the rest."""

import itertools
import os
import tempfile

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


def refused(message):
    return ToolResult(success=False, error={"message": message})


class Handles:
    name = "file_handle"
    description = "Opens the notes, reads a line of them, closes them."
    input_schema = {
        "type": "object",
        "properties": {"action": {"enum": ["open", "read", "close"]}, "handle": {"type": "integer", "minimum": 1}},
        "required": ["action"],
    }

    def __init__(self):
        made, self.path = tempfile.mkstemp(suffix=".txt")
        os.write(made, b"buy milk\nfix the roof\n")
        os.close(made)
        self.numbers = itertools.count(1)
        self.files = {}

    async def execute(self, input):
        action, handle = input.get("action"), input.get("handle")
        if action == "open":
            number = next(self.numbers)
            self.files[number] = open(self.path, encoding="utf-8")
            return ToolResult(output={"handle": number})
        if action not in ("read", "close"):
            return refused("action is open, read or close")
        if not isinstance(handle, (int, float)) or handle not in self.files:
            return refused("this handle is not open")
        if action == "read":
            return ToolResult(output=self.files[handle].readline())
        self.files.pop(handle).close()
        return ToolResult(output="closed")

    async def close(self):
        while self.files:
            self.files.popitem()[1].close()
        if os.path.exists(self.path):
            os.unlink(self.path)


async def mount(coordinator, config):
    tool = Handles()
    await coordinator.mount("tools", tool)
    return tool.close
