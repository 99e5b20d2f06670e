"""Stored messages with the facts that views need, their tool calls, and estimates of tokens.

Nothing here runs code of third-party classes or recurses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard, final

import attrs
import orjson

from amplifier._internal.json import JSON

SYSTEM_ROLES = frozenset({"system", "developer"})

# Values of ``source`` in the metadata of messages.

# A user message that was sent during a turn. It does not start a turn.
STEERING = "steering"

# A message that shows the model the problems with its typed answer.
CORRECTION = "answer_format"

# Messages with the role ``user`` that do not start a turn.
NO_PROMPTS = frozenset({"hook", CORRECTION, STEERING})


@final
@attrs.define(eq=False, kw_only=True)
class Entry:
    """One stored message, with the facts that views need.

    Attributes:
        message: The message, which is never changed.
        position: Position in the conversation, or -1 for a message that a compaction inserted.
        is_flat: Whether no value in it needs to be copied.
        tokens: Estimated number of tokens.
        part: Positions of a call and all its results. For any other message, only its own position.
        answers: Positions of the messages whose tool calls it answers.
        is_orphan: Whether it answers calls that no message made. No provider would accept it.
        is_system: Whether it is an instruction, which no view leaves out.
        is_prompt: Whether it is text from a user that starts a turn. Tool results and text that a
            hook injected do not.
        is_steering: Whether it is text that a user sent during a turn.
        is_pinned: Whether its metadata has ``pinned: true``.
        is_plan: Whether it calls a tool for plans or lists of tasks, or answers such a call.
    """

    message: dict[str, JSON]
    position: int = -1
    is_flat: bool = False
    tokens: int
    part: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    is_orphan: bool = False
    is_system: bool = False
    is_prompt: bool = False
    is_steering: bool = False
    is_pinned: bool = False
    is_plan: bool = False


# Calls are in ``tool_calls`` or in content blocks. Results are in messages with the role ``tool``
# or in content blocks. Providers use two spellings of block types and ids, and both are read. A
# malformed message has no ids.

# Providers use text as ids, but numbers are accepted.
CallId = str | int

CALL_BLOCKS = frozenset({"tool_call", "tool_use"})
RESULT_BLOCKS = frozenset({"tool_result"})


def blocks_of(message: Mapping[str, JSON]) -> Sequence[dict[str, JSON]]:
    """Return the content blocks that are dicts."""
    content = message.get("content")
    if not isinstance(content, list):
        return ()
    return [block for block in content if isinstance(block, dict)]


@attrs.frozen
class OpenCall:
    """A tool call of an assistant's message.

    Attributes:
        id: Id of the call.
        name: Name of the tool, or None if it is missing.
        arguments: The input. It is usually a dict, but providers and contexts may store other
            values.
    """

    id: CallId
    name: str | None
    arguments: JSON


def call_ids(message: Mapping[str, JSON]) -> list[CallId]:
    """Return the unique ids of the tool calls of an assistant's message, in order."""
    return list(_calls_of(message))


def call_names(message: Mapping[str, JSON]) -> dict[CallId, str | None]:
    """Return the names of the tools that an assistant's message calls, by the ids of the calls."""
    return {call.id: call.name for call in _calls_of(message).values()}


def _calls_of(message: Mapping[str, JSON]) -> dict[CallId, OpenCall]:
    calls: dict[CallId, OpenCall] = {}
    listed = message.get("tool_calls")
    for call in listed if isinstance(listed, list | tuple) else ():
        if isinstance(call, dict) and _is_id(call.get("id")):
            function = call.get("function")
            inner: dict[str, JSON] = function if isinstance(function, dict) else {}
            name = _text(call.get("name") or call.get("tool") or inner.get("name"))
            arguments = call.get("arguments", inner.get("arguments"))
            calls.setdefault(call["id"], OpenCall(call["id"], name, arguments))
    for block in blocks_of(message):
        if _kind(block) in CALL_BLOCKS and _is_id(call_id := block.get("id")):
            opened = OpenCall(call_id, _text(block.get("name")), block.get("input"))
            calls.setdefault(call_id, opened)
    return calls


def result_ids(message: Mapping[str, JSON]) -> list[CallId]:
    """Return the unique ids of the tool calls that a message answers, in order."""
    ids: dict[CallId, None] = {}
    if message.get("role") == "tool" and _is_id(call_id := message.get("tool_call_id")):
        ids[call_id] = None
    for block in blocks_of(message):
        if _kind(block) in RESULT_BLOCKS:
            call_id = block.get("tool_call_id", block.get("tool_use_id"))
            if _is_id(call_id):
                ids[call_id] = None
    return list(ids)


def open_calls(messages: Sequence[Mapping[str, JSON]]) -> list[OpenCall]:
    """Return the calls of the last assistant message that have no result, in order.

    Results and messages that hooks injected may follow that message.
    """
    answered: set[CallId] = set()
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return [call for call in _calls_of(message).values() if call.id not in answered]
        answered.update(result_ids(message))
    return []


def missing_results(messages: Sequence[Mapping[str, JSON]], content: str) -> list[dict[str, JSON]]:
    """Return result messages for all `open_calls`."""
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            **({"name": call.name} if call.name else {}),
            "content": content,
        }
        for call in open_calls(messages)
    ]


def is_aside(message: Mapping[str, JSON]) -> bool:
    """Return whether a message is an instruction, or was injected by a hook.

    Such a message doesn't reflect the state of a turn.
    """
    role, metadata = message.get("role"), message.get("metadata")
    if role == "user":
        return isinstance(metadata, dict) and metadata.get("source") == "hook"
    return role in ("system", "developer")


def _kind(block: Mapping[str, JSON]) -> str | None:
    return _text(block.get("type"))


def _is_id(value: object) -> TypeGuard[CallId]:
    return isinstance(value, str | int) and value != ""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────
# The estimate divides the number of UTF-8 bytes in a message's JSON text. For English this equals
# the number of characters, and for Cyrillic, Chinese or emoji it is much closer to the counts of
# tokenizers. The base64 text of media is excluded. Pictures and audio count as a fixed number of
# tokens, and documents count by size.

# The number of bytes to count for a value that JSON cannot represent.
_NOT_JSON = 32
# The maximum that the large providers charge for a picture, because they scale pictures down.
_PICTURE_TOKENS = 1600
# 50 bytes of PDF per token. This lies between a page of pictures and a page of dense text.
_BASE64_PER_TOKEN = 67
# A document must not seem larger than a usual context window.
_MAX_DOCUMENT_TOKENS = 50_000
MEDIA = ("image", "audio", "document")


def count_tokens(message: JSON, chars_per_token: float) -> int:
    """Estimate the tokens of a message, at least one."""
    media = 0
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and any(map(_may_hold_media, content)):
        rest, media = _without_media(content)
        if media:
            message = {**message, "content": rest}
    return max(1, math.ceil(_json_size(message) / chars_per_token) + media)


def _media_tokens(block: dict[str, JSON]) -> int:
    source = block.get("source") if block["type"] == "document" else None
    data = source.get("data") if isinstance(source, dict) else None
    size = len(data) // _BASE64_PER_TOKEN if isinstance(data, str) else 0
    return min(max(size, _PICTURE_TOKENS), _MAX_DOCUMENT_TOKENS)


def _may_hold_media(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in ("tool_result", *MEDIA)


def _without_media(blocks: list[JSON]) -> tuple[list[JSON], int]:
    """Return blocks and parts of tool results without their media, and the tokens of the media."""
    rest: list[JSON] = []
    tokens = 0
    for block in blocks:
        if not isinstance(block, dict):
            rest.append(block)
            continue
        if block.get("type") in MEDIA:
            tokens += _media_tokens(block)
            continue
        for key in ("content", "output"):
            parts = block.get(key)
            if block.get("type") == "tool_result" and isinstance(parts, list):
                dicts = [part for part in parts if isinstance(part, dict)]
                media = [part for part in dicts if part.get("type") in MEDIA]
                tokens += sum(map(_media_tokens, media))
                others = [part for part in parts if part not in media]
                block = {**block, key: others}  # noqa: PLW2901 — replaced by a copy
        rest.append(block)
    return rest, tokens


def _json_size(value: object) -> int:
    # The encoder rejects integers over 64 bits, lone surrogates and values that are not JSON.
    try:
        return len(orjson.dumps(value))
    except (TypeError, RecursionError):
        return _estimate_size(value)


def _estimate_size(root: JSON) -> int:
    """Estimate the size of a value that the encoder rejects."""
    size, pending = 0, [root]
    while pending:
        value = pending.pop()
        kind = type(value)
        if issubclass(kind, dict):
            pending.extend(dict.keys(value))
            pending.extend(dict.values(value))
            size += 2 + 2 * len(value)
        elif issubclass(kind, list | tuple):
            pending.extend(value)
            size += 2 + len(value)
        elif issubclass(kind, str):
            size += 2 + len(str.encode(value, "utf-8", "surrogatepass"))
        elif issubclass(kind, bytes):
            size += 2 + len(value)
        elif issubclass(kind, int) and not issubclass(kind, bool):
            size += 1 + int.bit_length(value) * 3 // 10
        else:
            size += 5 if value is None or kind is bool else _NOT_JSON
    return size
