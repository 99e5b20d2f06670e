"""Planted: a missing key leaves execute as a KeyError."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class WordCount:
    @property
    def name(self):
        return "word_count"

    @property
    def description(self):
        return "Counts the words of a text."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        return ToolResult(output={"words": len(str(input["text"]).split())})


async def mount(coordinator, config):
    tool = WordCount()
    await coordinator.mount("tools", tool, name=tool.name)
    return tool
