"""Remembers the results of a slow lookup for a while; calls for the same word at the same time share one lookup.

Sound.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
KEEP_SECONDS = 300
KEEP_ENTRIES = 100


class SoundexTool:
    """The lookup is a sound code here; a lock per word lets one call compute and the others wait for it."""

    name = "sound_code"
    description = "Returns a code for how a word sounds (its first letter and its consonants)."

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._locks: dict[str, tuple[anyio.Lock, int]] = {}

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"word": {"type": "string", "minLength": 1, "maxLength": 100, "examples": ["window"]}},
            "required": ["word"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        word = input.get("word")
        if not isinstance(word, str) or not 1 <= len(word) <= 100:
            return ToolResult(success=False, error={"message": "word: expected a string of 1 to 100 characters"})
        lock, users = self._locks.get(word, (anyio.Lock(), 0))
        self._locks[word] = (lock, users + 1)
        try:
            async with lock:
                code = await self._code(word)
        finally:
            lock, users = self._locks.pop(word)
            if users > 1:
                self._locks[word] = (lock, users - 1)
        return ToolResult(success=True, output={"word": word, "code": code})

    async def _code(self, word: str) -> str:
        kept = self._kept.get(word)
        if kept is not None and time.monotonic() - kept[0] < KEEP_SECONDS:
            return kept[1]
        await anyio.sleep(self._delay)
        code = word[0].upper() + "".join(each for each in word[1:].lower() if each.isalpha() and each not in "aeiouhwy")
        self._kept[word] = (time.monotonic(), code)
        self._kept.move_to_end(word)
        while len(self._kept) > KEEP_ENTRIES:
            self._kept.popitem(last=False)
        return code


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("tools", SoundexTool(float((config or {}).get("delay", 0.01))))
