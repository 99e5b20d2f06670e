"""Looks words up with a cache and one flight per word; retries a lookup that fails now and then."""

import random
import time
from collections import OrderedDict

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Flaky(Exception):
    pass


class Dictionary:
    name = "define_word"
    description = "Gives the definition of a word."

    def __init__(self, config):
        self.cache = OrderedDict()
        self.flights = {}
        self.size = config.get("cache_size", 50)
        self.random = random.Random()
        self.started = time.monotonic()

    @property
    def input_schema(self):
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"word": {"type": "string"}, "language": {"enum": ["en", "de"], "default": "en"}},
            "required": ["word"],
        }

    async def execute(self, input):
        word, language = input.get("word"), input.get("language", "en")
        if not isinstance(word, str) or language not in ("en", "de"):
            return ToolResult(success=False, error={"message": "word must be a text, language en or de"})
        key = (word, language)
        async with self.flights.setdefault(key, anyio.Lock()):
            try:
                if key not in self.cache:
                    self.cache[key] = await self.look_up(word, language)
                self.cache.move_to_end(key)
                found = dict(self.cache[key])
                while len(self.cache) > self.size:
                    self.cache.popitem(last=False)
            except Flaky as error:
                return ToolResult(success=False, error={"message": str(error), "retry": True})
        return ToolResult(success=True, output={**found, "age": round(time.monotonic() - self.started, 3)})

    async def look_up(self, word, language):
        for attempt in range(6):
            try:
                await anyio.sleep(0.001 * attempt)
                if self.random.random() < 0.2:
                    raise Flaky("the dictionary is busy")
                return {"word": word, "language": language, "text": f"{word}: {len(word)} letters"}
            except Flaky:
                if attempt == 5:
                    raise
        raise AssertionError


async def mount(coordinator, config):
    tool = Dictionary(config or {})
    await coordinator.mount("tools", tool, name="define_word")
