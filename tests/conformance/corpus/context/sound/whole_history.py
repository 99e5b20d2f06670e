"""A context that keeps everything and shows the model the newest messages that fit.

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


class WholeContext:
    """Keeps everything; a request gets what fits."""

    def __init__(self, hooks: Any, max_tokens: int) -> None:
        self._hooks = hooks
        self._max_tokens = max_tokens
        self._messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"a message needs a role, got {message!r:.200}")
        self._messages.append(copy.deepcopy(message))

    async def get_messages(self) -> list[dict[str, Any]]:
        return copy.deepcopy(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = copy.deepcopy(messages)

    async def clear(self) -> None:
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
    await coordinator.mount("context", WholeContext(coordinator.hooks, int((config or {}).get("max_tokens", 50_000))))
