"""Planted: every new key becomes part of the schema."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Memo:
    name = "memo"
    description = "Remembers values by key."

    def __init__(self):
        self._schema = {"type": "object", "properties": {}}

    def get_schema(self):
        return self._schema

    async def execute(self, input):
        for key in input:
            self._schema["properties"].setdefault(key, {})
        return ToolResult(output=sorted(self._schema["properties"]))


async def mount(coordinator, config):
    await coordinator.mount("tools", Memo())
