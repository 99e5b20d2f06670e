"""Looks words up in an index that the first call builds; cleanup waits for the index only if it is being built."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

WORDS = {"kernel": "a core", "loop": "a cycle", "hook": "a hanger"}


class Lookup:
    name = "lookup"
    description = "Explains a word."
    input_schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}

    def __init__(self):
        self.index = None
        self.is_building = False
        self.ready = anyio.Event()

    async def build(self):
        if self.index is None:
            self.is_building = True
            self.index = {word.casefold(): meaning for word, meaning in WORDS.items()}
            self.ready.set()

    async def execute(self, input):
        await self.build()
        word = input.get("word")
        if not isinstance(word, str):
            return ToolResult(success=False, error={"message": "word has to be a string"})
        return ToolResult(output=self.index.get(word.casefold(), "unknown"))

    async def close(self):
        if self.is_building:
            await self.ready.wait()
        self.index = {}


async def mount(coordinator, config):
    tool = Lookup()
    await coordinator.mount("tools", tool)
    return tool.close
