"""Planted: an input it does not like ends the program."""

import sys

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Strict:
    name = "strict_echo"
    description = "Echoes a text."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        if not isinstance(input.get("text"), str):
            sys.exit("text is required")
        return ToolResult(output=input["text"])


async def mount(coordinator, config):
    await coordinator.mount("tools", Strict())
