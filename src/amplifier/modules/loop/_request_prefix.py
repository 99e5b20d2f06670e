"""What a service's prompt cache can use again: how far a request begins as the one before did, and what broke it.

A context that follows our contract adds at the end of its view until a compaction; tools and instructions stay as they are. So a break has
one of three reasons, and each is worth knowing: it costs the price of reading everything behind it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

import attrs

from amplifier.models import ToolSpec, to_dict

from ..context import count_tokens

_CHARS_PER_TOKEN = 4.0


@attrs.frozen
class PrefixBreak:
    """A request that does not begin as the one before did.

    Attributes:
        reason: What changed first, in the order in which services read it.
        same_messages: How many messages at the beginning are the same.
        tokens: What was sent before and has to be read anew, roughly.
    """

    reason: Literal["tools", "instructions", "messages"]
    same_messages: int
    tokens: int


class RequestPrefix:
    """Compares each request of a loop with the one before it."""

    def __init__(self) -> None:
        self._tools: Any = None
        self._messages: list[dict[str, Any]] = []

    def follow(self, tools: Sequence[ToolSpec] | None, messages: list[dict[str, Any]]) -> PrefixBreak | None:
        """Take the next request, without what is shown once only; returns what of the one before it cannot be used again."""
        described = [to_dict(tool) for tool in tools or ()]
        before, self._messages = self._messages, messages
        known, self._tools = self._tools, described
        if not before:
            return None
        if known != described:
            return PrefixBreak("tools", 0, _tokens(known) + sum(map(_tokens, messages)))
        if messages[: len(before)] == before:  # thousands of them, and nearly always
            return None
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, messages, strict=False)))
        changed = (*before[same : same + 1], *messages[same : same + 1])
        is_instruction = any(message.get("role") in ("system", "developer") for message in changed)
        return PrefixBreak("instructions" if is_instruction else "messages", same, sum(map(_tokens, messages[same:])))


def _tokens(value: Any) -> int:
    return count_tokens(value, _CHARS_PER_TOKEN)
