"""Estimates tokens from the number of characters."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from amplifier.models import ChatRequest, Message, Usage, to_dict
from amplifier.models._definition.shared_list import shared_members

_CHARACTERS_PER_TOKEN = 4


def estimate_tokens(*values: Any) -> int:
    """Estimate tokens: a quarter of the characters of every text in the values, rounded up."""
    return -(-sum(map(_characters, values)) // _CHARACTERS_PER_TOKEN)


def _characters(value: Any) -> int:
    total, left = 0, [value]
    while left:  # not recursive: the values of a request may be nested deeply
        item = left.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            left += item.keys()
            left += item.values()
        elif isinstance(item, list | tuple):
            left += item
        elif item is not None and not isinstance(item, int | float):
            left.append(to_dict(item) if hasattr(item, "__attrs_attrs__") else str(item))
    return total


def estimated_usage(request: ChatRequest, content: Iterable[Any]) -> Usage:
    """Estimate the usage of a request and its answer; the cost is 0."""
    asked = estimate_tokens(
        [_counted_content(message) for message in shared_members(request.messages)], request.tools or ()
    )
    answered = estimate_tokens(list(content))
    return Usage(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered, cost_usd=Decimal(0))


def _counted_content(message: Message) -> Any:
    # Keys of blocks count for little and cost a walk over copies; most messages are plain text.
    return message.content if isinstance(message.content, str) else [*message.content]
