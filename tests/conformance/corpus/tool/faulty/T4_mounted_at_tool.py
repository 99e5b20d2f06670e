"""Counts words.

Planted: there is no mount point "tool"; the right one is "tools".
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class WordCount:
    name = "word_count"
    description = "Counts the words of a text."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text has to be a string"})
        return ToolResult(output={"words": len(text.split())})


async def mount(coordinator, config):
    tool = WordCount()
    await coordinator.mount("tool", tool, name=tool.name)
    return None
