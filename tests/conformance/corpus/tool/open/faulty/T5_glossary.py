"""Looks terms up in a glossary; hits are cached per query.

Fault: the cached list itself gets the line that tells how many entries there are, so that each repeated query returns one such
line more than the call before.
"""

from __future__ import annotations

import logging
from typing import Any

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
logger = logging.getLogger(__name__)

ENTRIES = {
    "agent": "A program that lets a model choose its next step.",
    "hook": "A handler that is called when an event is emitted.",
    "orchestrator": "The loop that asks the model and runs tools.",
    "provider": "A language model behind one interface.",
    "text": "What a model reads and writes.",
    "tool": "Something that the model may call by name.",
}


class Glossary:
    name = "glossary"
    description = "Looks a word up in the project's glossary. Give it the word or a part of it."

    def __init__(self, entries: dict[str, str], cache_size: int = 128) -> None:
        self._entries = entries
        self._cache: dict[str, list[str]] = {}
        self._cache_size = cache_size

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"term": {"type": "string", "examples": ["hook"]}},
            "required": ["term"],
        }

    def _search(self, term: str) -> list[str]:
        if term not in self._cache:
            if len(self._cache) >= self._cache_size:
                self._cache.pop(next(iter(self._cache)))
            wanted = term.casefold()
            self._cache[term] = [f"{name}: {text}" for name, text in self._entries.items() if wanted in name]
        return self._cache[term]

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        term = input.get("term")
        if not isinstance(term, str):
            return ToolResult(success=False, error={"message": f"term: expected a string, got {term!r}"})
        lines = self._search(term.strip())
        lines.append(f"({len(self._entries)} entries in the glossary)")
        return ToolResult(success=True, output="\n".join(lines))


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    extra = (config or {}).get("entries")
    entries = {**ENTRIES, **extra} if isinstance(extra, dict) else ENTRIES
    await coordinator.mount("tools", Glossary(entries))
    logger.info("glossary with %d entries", len(entries))
