"""Opens its client at the first call, shares it between calls, and closes it on leaving its mount."""

from contextlib import asynccontextmanager

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Client:
    """A connection to a dictionary service that lives in this process."""

    def __init__(self):
        self.closed = False

    async def open(self):
        await anyio.sleep(0.002)
        return self

    async def get(self, word):
        await anyio.sleep(0.001)
        if self.closed:
            raise ConnectionError("the connection is closed")
        return {"word": word, "letters": len(word)}


class Define:
    name = "define_word"
    description = "Looks up a word."
    input_schema = {
        "type": "object",
        "properties": {"word": {"type": "string", "minLength": 1}},
        "required": ["word"],
    }

    def __init__(self):
        self._client = None
        self._opening = anyio.Lock()

    async def client(self):
        async with self._opening:
            if self._client is None:
                self._client = await Client().open()
            return self._client

    async def execute(self, input):
        word = input.get("word")
        if not isinstance(word, str) or not word:
            return ToolResult(success=False, error={"message": "word has to be a text, not empty"})
        try:
            return ToolResult(output=await (await self.client()).get(word))
        except ConnectionError as error:
            return ToolResult(success=False, error={"message": str(error)})


@asynccontextmanager
async def mount(coordinator, config):
    tool = Define()
    await coordinator.mount("tools", tool)
    try:
        yield
    finally:
        if tool._client is not None:
            tool._client.closed = True
