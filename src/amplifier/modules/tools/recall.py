"""tool-recall: lets the model read messages that were compacted out of its requests."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from typing import Any, ClassVar

from amplifier.contracts import Coordinator
from amplifier.models import ToolResult

from .._shared.configuration import read_options
from .._shared.failure import ToolFailure
from .._shared.worker_threads import Stop, Workers
from ._base import BuiltinTool, NoOptions, characters, option, tool_input, whole

__all__ = ["RecallTool", "mount"]

__amplifier_module_type__ = "tool"

_MAX_TEXT = 8000
_MAX_HITS = 8
_AROUND = 160
"""The number of characters shown before a hit."""


class RecallTool(BuiltinTool):
    """The tool that searches the stored conversation of its session and shows messages from it.

    Args:
        coordinator: The coordinator of the session.
    """

    _name = "recall"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Read earlier messages of this conversation again. Messages are numbered from 1. Give "
        "query (words) to search all of them, or number to read one whole, for example where a "
        "text contains '[message 17: 900 characters left out]'. Give offset to continue in a long "
        "one."
    )
    _input = tool_input(
        query=option(characters(0, 1000), "", "Words to search for."),
        number=option(whole(1), None, "The message to read."),
        offset=option(whole(0), 0, "Characters to skip."),
    )

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._workers = Workers(threads=1)

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        number = values.get("number")
        context = self._coordinator.get("context")
        messages = [] if context is None else await context.get_messages()
        if number is None:
            hits = await self._workers.run(
                lambda stop: _search(messages, values["query"], stop), label="recall"
            )
            return ToolResult(output={"messages": len(messages), "found": hits})
        if number > len(messages):
            raise ToolFailure(
                "NotFound", f"there is no message {number}; the conversation has {len(messages)}"
            )
        message = messages[number - 1]
        whole, offset = _text(message), values["offset"]
        shown = whole[offset : offset + _MAX_TEXT]
        left = max(0, len(whole) - offset - len(shown))
        output = {
            "number": number,
            "role": message.get("role"),
            "text": shown,
            "characters_left": left,
        }
        return ToolResult(output=output)


def _text(message: dict[str, Any]) -> str:
    """Return the text of a message, or its content and tool calls as JSON."""
    content = message.get("content")
    if isinstance(content, str) and not message.get("tool_calls"):
        return content
    parts = {
        name: message[name] for name in ("content", "tool_calls") if message.get(name) is not None
    }
    return json.dumps(parts, ensure_ascii=False, default=str)


def _search(messages: list[dict[str, Any]], query: str, stop: Stop) -> list[dict[str, Any]]:
    """Return the messages that match best, each with the text around its first match."""
    words = re.findall(r"\w+", query)
    texts = [_text(message) for message in messages]
    with closing(sqlite3.connect(":memory:")) as db:
        numbers = _ranked(db, texts, words, stop) if words else []
    return [
        {
            "number": number,
            "role": messages[number - 1].get("role"),
            "text": _excerpt(texts[number - 1], words),
        }
        for number in numbers
    ]


def _ranked(db: sqlite3.Connection, texts: list[str], words: list[str], stop: Stop) -> list[int]:
    db.execute("CREATE VIRTUAL TABLE past USING fts5(body)")
    for number, text in enumerate(texts, 1):
        stop.check()
        db.execute(
            "INSERT INTO past (rowid, body) VALUES (?, ?)",
            (number, text.encode(errors="replace").decode()),
        )
    query = " OR ".join(f'"{word}"' for word in words)
    rows = db.execute(
        "SELECT rowid FROM past WHERE past MATCH ? ORDER BY rank LIMIT ?", (query, _MAX_HITS)
    )
    return [int(number) for (number,) in rows]


def _excerpt(text: str, words: list[str]) -> str:
    lower = text.lower()
    positions = [position for word in words if (position := lower.find(word.lower())) >= 0]
    first = max(0, min(positions, default=0) - _AROUND)
    excerpt = text[first : first + 3 * _AROUND]
    return f"{'…' if first else ''}{excerpt}{'…' if first + len(excerpt) < len(text) else ''}"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the tool."""
    read_options(NoOptions, "tool-recall", config)
    await coordinator.mount("tools", RecallTool(coordinator))
