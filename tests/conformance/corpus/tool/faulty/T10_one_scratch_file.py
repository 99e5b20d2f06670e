"""Formats a list of words by way of a scratch file.

Planted: all calls use the same scratch file, so that concurrent calls read each other's words.
"""

import json
import os
import tempfile

import anyio.lowlevel

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Columns:
    name = "columns"
    description = "Puts words into one line."
    input_schema = {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"type": "string"}}},
        "required": ["words"],
    }

    def __init__(self, folder):
        self.scratch = os.path.join(folder, "scratch.json")

    async def execute(self, input):
        words = input.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            return ToolResult(success=False, error={"message": "words has to be a list of texts"})
        with open(self.scratch + ".new", "w", encoding="utf-8") as file:
            json.dump(words, file)
        os.replace(self.scratch + ".new", self.scratch)
        await anyio.lowlevel.checkpoint()
        with open(self.scratch, encoding="utf-8") as file:
            return ToolResult(output=" | ".join(json.load(file)))


async def mount(coordinator, config):
    folder = tempfile.TemporaryDirectory()
    await coordinator.mount("tools", Columns(folder.name))
    return folder.cleanup
