"""Small pure parts: text in pieces, ids nobody has used, and an estimate of tokens. Below `CannedProvider`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import Any

from amplifier.models import ChatRequest, Message, ToolCall, ToolCallBlock, ToolResultBlock, Usage, to_dict

_CHARACTERS_PER_TOKEN = 4
_MOST_PIECES = 200
_WORD = re.compile(r"\S+\s*|\s+")


def pieces_of(text: str) -> list[str]:
    """The text in pieces of a word or, for a long text, of several; joined they are the text again."""
    words = _WORD.findall(text)
    size = -(-len(words) // _MOST_PIECES) or 1
    return ["".join(words[at : at + size]) for at in range(0, len(words), size)]


def estimate_tokens(*values: Any) -> int:
    """About how many tokens: a quarter of the characters of every text in the values, rounded up."""
    return -(-sum(map(_characters, values)) // _CHARACTERS_PER_TOKEN)


def _characters(value: Any) -> int:
    total, left = 0, [value]
    while left:  # not recursive: what a request holds may be nested deeply
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
    """Usage by that estimate; it costs nothing."""
    asked = estimate_tokens([_spoken(message) for message in request.messages], request.tools or ())
    answered = estimate_tokens(list(content))
    return Usage(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered, cost_usd=Decimal(0))


def _spoken(message: Message) -> Any:
    # Keys of blocks count for little and cost a walk over copies; most messages are plain text.
    return message.content if isinstance(message.content, str) else [*message.content]


def calls_in(message: Message) -> list[ToolCall]:
    """The calls an assistant's message makes, in blocks or under ``tool_calls``, in order and each once."""
    calls: dict[str, ToolCall] = {}
    if isinstance(message.content, list):
        for block in message.content:
            if isinstance(block, ToolCallBlock):
                calls[block.id] = ToolCall(id=block.id, name=block.name, arguments=block.input)
    listed = message.extra.get("tool_calls")
    for item in listed if isinstance(listed, list) else ():
        if not isinstance(item, dict):
            continue
        name, arguments = item.get("name") or item.get("tool"), item.get("arguments")
        if isinstance(item.get("id"), str) and item["id"] not in calls and isinstance(name, str):
            given = arguments if isinstance(arguments, dict) else {}
            calls[item["id"]] = ToolCall(id=item["id"], name=name, arguments=given)
    return list(calls.values())


def used_ids(request: ChatRequest) -> set[str]:
    """Every tool-call id the conversation shows."""
    ids: set[str] = set()
    for message in request.messages:
        ids.update(call.id for call in calls_in(message))
        if message.tool_call_id:
            ids.add(message.tool_call_id)
        if isinstance(message.content, list):
            ids.update(block.tool_call_id for block in message.content if isinstance(block, ToolResultBlock))
    return ids


def fresh_id(wanted: str, taken: Collection[str]) -> str:
    """The id, or the id with a number behind it if somebody has it already."""
    if wanted not in taken:
        return wanted
    number = 2
    while f"{wanted}_{number}" in taken:
        number += 1
    return f"{wanted}_{number}"
