"""Planted: a pattern that is no regular expression raises re.error."""

import re

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Matches:
    name = "matches"
    description = "Finds what matches a pattern in a text."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "text": {"type": "string"}},
            "required": ["pattern", "text"],
        }

    async def execute(self, input):
        pattern, text = input.get("pattern"), input.get("text")
        if not isinstance(pattern, str) or not isinstance(text, str):
            return ToolResult(success=False, error={"message": "pattern and text must be strings"})
        return ToolResult(output=re.findall(pattern, text))


async def mount(coordinator, config):
    await coordinator.mount("tools", Matches())
