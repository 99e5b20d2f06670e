"""Conversations for contexts, built from a few numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

# Texts are made of three-letter words, so that counting four characters for a token, counting
# words and using a tokenizer give about the same result. Every message begins with a unique mark,
# which identifies it after a context has shortened it.

CHARACTERS_PER_TOKEN = 4
_WORDS = [
    "the",
    "old",
    "man",
    "and",
    "his",
    "dog",
    "ran",
    "out",
    "for",
    "one",
    "day",
    "but",
    "not",
    "all",
]
_LONG_CALLS = 30
_MARK = re.compile(r"m\d{4}")


def prose(number: int, words: int) -> str:
    """Return a text of `words` words that begins with the mark of a number."""
    rest = (_WORDS[(number + index) % len(_WORDS)] for index in range(words - 1))
    return " ".join([f"m{number:04d}", *rest])


def mark_of(message: Mapping[str, Any]) -> str | None:
    """Return the mark at the beginning of a message, or None if it has none."""
    content = message.get("content")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    match = _MARK.match(content) if isinstance(content, str) else None
    return match.group() if match else None


def spoken(number: int, role: str, words: int) -> Message:
    """Return a plain message."""
    return {"role": role, "content": prose(number, words)}


def tool_turn(
    number: int,
    calls: int,
    words: int,
    *,
    between: str | None = None,
    content: Any = None,
    blocks: bool = False,
) -> list[Message]:
    """Return an assistant's message with calls, followed by their results.

    Args:
        number: Prefix of the call ids.
        calls: Number of calls.
        words: Length of each result.
        between: Role of a message between the results, or None for no such message.
        content: Content of the assistant's message.
        blocks: True to make the results content blocks instead of texts.
    """
    ids = [f"call-{number}-{index}" for index in range(calls)]
    # Some calls are longer than their results.
    at = prose(number, words) if number % _LONG_CALLS == 0 else "here"
    function = {"name": "look", "arguments": json.dumps({"at": at})}
    requests = [{"id": call_id, "type": "function", "function": dict(function)} for call_id in ids]
    messages: list[Message] = [{"role": "assistant", "content": content, "tool_calls": requests}]
    for index, call_id in enumerate(ids):
        if between is not None and index == 1:
            messages.append(spoken(number + 1, between, min(words, 12)))
        text = prose(number + 2 + index, words)
        result = [{"type": "text", "text": text}] if blocks else text
        messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
    return messages


def call_blocks(number: int, calls: int, words: int) -> list[Message]:
    """Return an assistant's message with its calls as content blocks, followed by their results.

    Args:
        number: Prefix of the call ids.
        calls: Number of calls.
        words: Length of each result.
    """
    ids = [f"call-{number}-{index}" for index in range(calls)]
    content = [
        {"type": "text", "text": prose(number, 6)},
        *({"type": "tool_call", "id": call_id, "name": "look", "input": {}} for call_id in ids),
    ]
    results = [
        {"role": "tool", "tool_call_id": call_id, "content": prose(number + 2 + index, words)}
        for index, call_id in enumerate(ids)
    ]
    return [{"role": "assistant", "content": content}, *results]


def built(units: Iterable[Mapping[str, Any]], first: int = 0) -> list[Message]:
    """Build a conversation from a list of units, each of which gets its own numbers.

    A unit is ``{"role": …, "words": …}`` for a message, or
    ``{"calls": …, "words": …, "between": …, "says": …, "blocks": …}``.
    """
    history: list[Message] = []
    for index, unit in enumerate(units):
        number = (first + index) * 10
        if "calls" in unit:
            text = prose(number + 9, 8) if unit.get("says") else None
            more = {"between": unit.get("between"), "blocks": unit.get("blocks", False)}
            history += tool_turn(number, unit["calls"], unit["words"], content=text, **more)
        else:
            history.append(spoken(number, unit["role"], unit["words"]))
    return history


def call_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the distinct ids of the calls in a message's field and blocks."""
    calls, content = message.get("tool_calls"), message.get("content")
    requests = list(calls) if isinstance(calls, list) else []
    requests += [
        block
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "tool_call"
    ]
    ids = dict.fromkeys(call.get("id") for call in requests if isinstance(call, dict))
    return [call_id for call_id in ids if isinstance(call_id, str)]


def size(message: Mapping[str, Any]) -> int:
    """Return the number of characters in a message's content and calls."""
    return _characters(message.get("content")) + _characters(message.get("tool_calls"))


def total_size(messages: Iterable[Mapping[str, Any]]) -> int:
    """Return the sum of the sizes of several messages."""
    return sum(size(message) for message in messages)


def tokens(messages: Iterable[Mapping[str, Any]]) -> int:
    """Estimate the number of tokens of several messages."""
    return total_size(messages) // CHARACTERS_PER_TOKEN + 1


def newest_unit(history: Sequence[Message]) -> set[int]:
    """Return the positions of the newest message and of the call and results that belong to it."""
    if not history:
        return set()
    last = len(history) - 1
    wanted = {*call_ids(history[last]), *_answered(history[last])}
    unit = {last}
    for position, message in enumerate(history):
        if wanted.intersection(call_ids(message)):
            unit.add(position)
            wanted.update(call_ids(message))
    unit.update(at for at, message in enumerate(history) if wanted.intersection(_answered(message)))
    return unit


def _answered(message: Mapping[str, Any]) -> set[str]:
    answered = message.get("tool_call_id")
    return {answered} if isinstance(answered, str) else set()


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    members = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return sum(_characters(member) for member in members)
