"""tool-recall: lets the model read again what its view of the conversation no longer shows.

It asks the session's context for everything stored, which every context returns, and searches it with SQLite's full-text index, made in
memory for the call.
"""

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

_MOST_TEXT = 8000
_MOST_HITS = 8
_AROUND = 160


class RecallTool(BuiltinTool):
    """Searches the conversation of its session, and shows messages of it.

    Args:
        coordinator: Has the context.
    """

    _name = "recall"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Read earlier messages of this conversation again. Messages are numbered from 1. Give query (words) to search all of them, "
        "or number to read one whole, as where a text contains '[message 17: 900 characters left out]'; offset reads on in a long one."
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
            found = await self._workers.run(
                lambda stop: _search(messages, values["query"], stop), what="recall"
            )
            return ToolResult(output={"messages": len(messages), "found": found})
        if number > len(messages):
            raise ToolFailure(
                "NotFound", f"there is no message {number}; the conversation has {len(messages)}"
            )
        message = messages[number - 1]
        whole, offset = _text(message), values["offset"]
        shown = whole[offset : offset + _MOST_TEXT]
        left = max(0, len(whole) - offset - len(shown))
        output = {
            "number": number,
            "role": message.get("role"),
            "text": shown,
            "characters_left": left,
        }
        return ToolResult(output=output)


def _text(message: dict[str, Any]) -> str:
    """The content of a message: its text, or everything but its role where it is more than text."""
    content = message.get("content")
    if isinstance(content, str) and not message.get("tool_calls"):
        return content
    said = {
        name: message[name] for name in ("content", "tool_calls") if message.get(name) is not None
    }
    return json.dumps(said, ensure_ascii=False, default=str)


def _search(messages: list[dict[str, Any]], query: str, stop: Stop) -> list[dict[str, Any]]:
    """The messages that fit best, each with the text around the first word that was found."""
    words = re.findall(r"\w+", query)
    texts = [_text(message) for message in messages]
    with closing(sqlite3.connect(":memory:")) as db:
        numbers = _ranked(db, texts, words, stop) if words else []
    return [
        {
            "number": number,
            "role": messages[number - 1].get("role"),
            "text": _around(texts[number - 1], words),
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
        "SELECT rowid FROM past WHERE past MATCH ? ORDER BY rank LIMIT ?", (query, _MOST_HITS)
    )
    return [int(number) for (number,) in rows]


def _around(text: str, words: list[str]) -> str:
    lower = text.lower()
    places = [place for word in words if (place := lower.find(word.lower())) >= 0]
    first = max(0, min(places, default=0) - _AROUND)
    shown = text[first : first + 3 * _AROUND]
    return f"{'…' if first else ''}{shown}{'…' if first + len(shown) < len(text) else ''}"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the tool."""
    read_options(NoOptions, "tool-recall", config)
    await coordinator.mount("tools", RecallTool(coordinator))
