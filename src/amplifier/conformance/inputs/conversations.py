"""Conversations for contexts, built from a few numbers.

Texts are made of three-letter words, so that counting four characters for a token, counting words and using a tokenizer
come to about the same. Every message begins with a mark of its own, by which it is recognised after a context has
shortened it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

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
    """A text of so many words that begins with the mark of a number."""
    return " ".join(
        [f"m{number:04d}", *(_WORDS[(number + each) % len(_WORDS)] for each in range(words - 1))]
    )


def mark_of(message: Mapping[str, Any]) -> str | None:
    """The mark that a message begins with."""
    content = message.get("content")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    found = _MARK.match(content) if isinstance(content, str) else None
    return found.group() if found else None


def spoken(number: int, role: str, words: int) -> Message:
    """A plain message."""
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
    """An assistant's message with calls, and their results one after the other.

    Args:
        number: From which the ids of the calls are made.
        calls: How many.
        words: The length of each result.
        between: The role of a message between the results, if there is one.
        content: The content of the assistant's message.
        blocks: Whether the results are content blocks and no texts.
    """
    ids = [f"call-{number}-{index}" for index in range(calls)]
    # Some calls are longer than their results.
    at = prose(number, words) if number % _LONG_CALLS == 0 else "here"
    made = {"name": "look", "arguments": json.dumps({"at": at})}
    requests = [{"id": each, "type": "function", "function": dict(made)} for each in ids]
    messages: list[Message] = [{"role": "assistant", "content": content, "tool_calls": requests}]
    for index, each in enumerate(ids):
        if between is not None and index == 1:
            messages.append(spoken(number + 1, between, min(words, 12)))
        text = prose(number + 2 + index, words)
        result = [{"type": "text", "text": text}] if blocks else text
        messages.append({"role": "tool", "tool_call_id": each, "content": result})
    return messages


def call_blocks(number: int, calls: int, words: int) -> list[Message]:
    """An assistant's message whose calls are content blocks, and their results.

    Args:
        number: From which the ids of the calls are made.
        calls: How many.
        words: The length of each result.
    """
    ids = [f"call-{number}-{index}" for index in range(calls)]
    said = [
        {"type": "text", "text": prose(number, 6)},
        *({"type": "tool_call", "id": each, "name": "look", "input": {}} for each in ids),
    ]
    results = [
        {"role": "tool", "tool_call_id": each, "content": prose(number + 2 + index, words)}
        for index, each in enumerate(ids)
    ]
    return [{"role": "assistant", "content": said}, *results]


def built(units: Iterable[Mapping[str, Any]], first: int = 0) -> list[Message]:
    """The conversation that a list of units describes; each has numbers of its own.

    A unit is ``{"role": …, "words": …}`` for a message, or ``{"calls": …, "words": …, "between": …, "says": …, "blocks": …}``.
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
    """Return the ids of the calls that a message makes, in its field and in its blocks, each once."""
    calls, content = message.get("tool_calls"), message.get("content")
    made = list(calls) if isinstance(calls, list) else []
    made += [
        block
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "tool_call"
    ]
    found = dict.fromkeys(call.get("id") for call in made if isinstance(call, dict))
    return [each for each in found if isinstance(each, str)]


def size(message: Mapping[str, Any]) -> int:
    """The characters of a message's content and calls."""
    return _characters(message.get("content")) + _characters(message.get("tool_calls"))


def total_size(messages: Iterable[Mapping[str, Any]]) -> int:
    """The characters of all of them together."""
    return sum(size(message) for message in messages)


def tokens(messages: Iterable[Mapping[str, Any]]) -> int:
    """About how many tokens they take."""
    return total_size(messages) // CHARACTERS_PER_TOKEN + 1


def newest_unit(history: Sequence[Message]) -> set[int]:
    """The positions of the newest message and of those that belong with it: a call and all its results."""
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
