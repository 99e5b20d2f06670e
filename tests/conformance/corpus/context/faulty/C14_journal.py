"""A context that keeps the conversation in a file of JSON lines, and goes on with it after a restart.

Fault: the file is read with `splitlines`, which also splits at U+2028, U+0085 and others that `ensure_ascii=False` writes as they
are; a message with such a character is lost when the file is loaded.
"""

from __future__ import annotations

import copy
import json
import logging
import os
from pathlib import Path
from typing import Any

__amplifier_module_type__ = "context"
logger = logging.getLogger(__name__)


def tokens_of(message: dict[str, Any]) -> int:
    """A rough estimate: four characters are a token."""
    return len(str(message)) // 4 + 1


def has_calls(message: dict[str, Any]) -> bool:
    if message.get("tool_calls"):
        return True
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(isinstance(block, dict) and block.get("type") in ("tool_call", "tool_use") for block in content)


def pieces_of(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What stays or goes together: a call and all its results."""
    pieces: list[list[dict[str, Any]]] = []
    asking: list[dict[str, Any]] | None = None
    for message in messages:
        if message.get("role") == "system":
            continue
        if message.get("role") == "tool" and asking is not None:
            asking.append(message)
            continue
        pieces.append([message])
        if has_calls(message):
            asking = pieces[-1]
    return pieces


def budget_of(provider: Any, fallback: int) -> int:
    """Window less output less a margin; a provider that cannot tell gets the fallback."""
    try:
        defaults = provider.get_info().defaults
        return max(1, int((defaults["context_window"] - defaults.get("max_output_tokens", 0)) * 0.9))
    except Exception:
        return fallback


def line_of(message: dict[str, Any]) -> str:
    """Readable for people who look at the file; a lone surrogate is written as an escape."""
    text = json.dumps(message, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(message)
    return text + "\n"


class JournalContext:
    """Every message is a line of the file; a change of all of them is a new file."""

    def __init__(self, hooks: Any, max_tokens: int, path: Path) -> None:
        self._hooks = hooks
        self._max_tokens = max_tokens
        self._path = path
        self._messages: list[dict[str, Any]] = []

    def load(self) -> None:
        """Read the file; a line that was cut off by a crash is left out."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            self._path.touch()
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                message = json.loads(line)
            except ValueError:
                logger.warning("a broken line in %s is left out", self._path)
                continue
            if isinstance(message, dict):
                self._messages.append(message)

    def _write(self, messages: list[dict[str, Any]]) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_text("".join(line_of(each) for each in messages), encoding="utf-8")
        os.replace(fresh, self._path)

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)

    async def add_message(self, message: dict[str, Any]) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"a message needs a role, got {message!r:.200}")
        stored = copy.deepcopy(message)
        self._append(line_of(stored))
        self._messages.append(stored)

    async def get_messages(self) -> list[dict[str, Any]]:
        return copy.deepcopy(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        stored = copy.deepcopy(messages)
        self._write(stored)
        self._messages = stored

    async def clear(self) -> None:
        self._write([])
        self._messages = []

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        budget = token_budget if token_budget is not None else budget_of(provider, self._max_tokens)
        total = sum(self._size(each) for each in self._messages)
        if total <= budget:
            return copy.deepcopy(self._messages)
        await self._hooks.emit("context:pre_compact", {"message_count": len(self._messages), "token_count": total})
        kept = self._fit(budget)
        used = sum(self._size(each) for each in kept)
        await self._hooks.emit("context:post_compact", {"message_count": len(kept), "token_count": used})
        return copy.deepcopy(kept)

    def _size(self, message: dict[str, Any]) -> int:
        return tokens_of(message)

    def _fit(self, budget: int) -> list[dict[str, Any]]:
        system = [each for each in self._messages if each.get("role") == "system"]
        left = budget - sum(self._size(each) for each in system)
        kept = {id(each) for each in system}
        for piece in reversed(pieces_of(self._messages)):
            size = sum(self._size(each) for each in piece)
            if size > left and len(kept) > len(system):
                break
            left -= size
            kept.update(map(id, piece))
        return [each for each in self._messages if id(each) in kept]


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    config = config or {}
    path = Path(config.get("path") or Path.home() / "conversation.jsonl")
    context = JournalContext(coordinator.hooks, int(config.get("max_tokens", 50_000)), path)
    context.load()
    await coordinator.mount("context", context)
