"""A context that shows the model the newest messages, as many as fit, with a cached view.

Sound.
"""

from __future__ import annotations

import copy
from typing import Any

__amplifier_module_type__ = "context"


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


class WindowContext:
    """Compacts a conversation once for each state of it."""

    def __init__(self, hooks: Any, max_tokens: int) -> None:
        self._hooks = hooks
        self._max_tokens = max_tokens
        self._messages: list[dict[str, Any]] = []
        self._version = 0
        self._view: tuple[int, int, list[dict[str, Any]]] | None = None

    def _replace(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._version += 1
        self._view = None

    async def add_message(self, message: dict[str, Any]) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"a message needs a role, got {message!r:.200}")
        self._replace([*self._messages, copy.deepcopy(message)])

    async def get_messages(self) -> list[dict[str, Any]]:
        return copy.deepcopy(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._replace(copy.deepcopy(messages))

    async def clear(self) -> None:
        self._replace([])

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        budget = token_budget if token_budget is not None else budget_of(provider, self._max_tokens)
        if self._view is not None and self._view[:2] == (self._version, budget):
            return copy.deepcopy(self._view[2])
        messages, version = self._messages, self._version
        total = sum(map(tokens_of, messages))
        if total <= budget:
            return copy.deepcopy(messages)
        await self._hooks.emit("context:pre_compact", {"message_count": len(messages), "token_count": total})
        kept = fit(messages, budget)
        used = sum(map(tokens_of, kept))
        await self._hooks.emit("context:post_compact", {"message_count": len(kept), "token_count": used})
        if version == self._version:
            self._view = (version, budget, kept)
        return copy.deepcopy(kept)


def fit(messages: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    system = [each for each in messages if each.get("role") == "system"]
    left = budget - sum(map(tokens_of, system))
    kept = {id(each) for each in system}
    for piece in reversed(pieces_of(messages)):
        size = sum(map(tokens_of, piece))
        if size > left and len(kept) > len(system):
            break
        left -= size
        kept.update(map(id, piece))
    return [each for each in messages if id(each) in kept]


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("context", WindowContext(coordinator.hooks, int((config or {}).get("max_tokens", 50_000))))
