"""A stored message with what every view asks of it: which tool calls it makes or answers, and how many tokens it takes, roughly.

Calls are in ``tool_calls`` or in content blocks, results in messages of the role ``tool`` or in content blocks; both
spellings of block and id that providers use are known. Anything malformed simply has no ids.

Tokens are the bytes of a message's JSON text, divided. Bytes of UTF-8 rather than characters: for English they are the same, and for
Cyrillic, Chinese or emoji a byte count is much nearer to what tokenizers do. A picture counts as a picture, and audio as much as one,
not as the base64 it is written in; a PDF counts by its size. Nothing here runs code of third-party classes or recurses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, final

import attrs
import orjson

SYSTEM_ROLES = frozenset({"system", "developer"})

STEERING = "steering"
"""The ``source``, in the metadata, of messages of the user while a turn runs: it is part of a turn, and begins none."""

CORRECTION = "answer_format"
"""The ``source`` of a message that shows the model what does not fit about its typed answer."""

NO_PROMPTS = frozenset({"hook", CORRECTION, STEERING})
"""The ``source`` of messages with the role of the user that begin no turn."""


@final
@attrs.define(eq=False, kw_only=True)
class Entry:
    """One stored message, with what every view asks of it.

    Attributes:
        message: As a dict, which is never changed.
        position: In the conversation; -1 for what a compaction put in place of others.
        is_flat: Nothing in it has to be copied.
        tokens: What it takes of a budget, roughly.
        part: Positions of a call and all its results, this one included; for any other message only its own.
        answers: Positions of the messages whose tool calls it answers.
        is_orphan: It answers calls that no message made, so that no provider would accept it.
        is_system: It is an instruction, which no view leaves out.
        is_prompt: It is text of a user that begins a turn; results in a user's message do not, nor does what a hook injects.
        is_steering: It is text of a user in a turn that had begun before.
        is_pinned: Its metadata has ``pinned: true``.
        is_plan: It calls a tool that keeps the plan or the list of what is to be done, or answers such a call.
    """

    message: dict[str, Any]
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


CallId = str | int
"""Providers use text; numbers are let through."""

CALL_BLOCKS = frozenset({"tool_call", "tool_use"})
RESULT_BLOCKS = frozenset({"tool_result"})


def blocks_of(message: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """The content blocks that are dicts."""
    content = message.get("content")
    return (
        [block for block in content if isinstance(block, dict)] if isinstance(content, list) else ()
    )


@attrs.frozen
class OpenCall:
    """A tool call of an assistant's message.

    Attributes:
        arguments: The input: a dict, or what a provider or a context has made of it.
    """

    id: CallId
    name: str | None
    arguments: Any


def call_ids(message: Mapping[str, Any]) -> list[CallId]:
    """The ids of the tool calls an assistant's message makes, in order, each once."""
    return list(_calls_of(message))


def call_names(message: Mapping[str, Any]) -> dict[CallId, str | None]:
    """The names of the tools an assistant's message calls, by the ids of the calls."""
    return {call.id: call.name for call in _calls_of(message).values()}


def _calls_of(message: Mapping[str, Any]) -> dict[CallId, OpenCall]:
    found: dict[CallId, OpenCall] = {}
    listed = message.get("tool_calls")
    for call in listed if isinstance(listed, list | tuple) else ():
        if isinstance(call, dict) and _is_id(call.get("id")):
            function = call.get("function")
            inner: dict[str, Any] = function if isinstance(function, dict) else {}
            name = _text(call.get("name") or call.get("tool") or inner.get("name"))
            arguments = call.get("arguments", inner.get("arguments"))
            found.setdefault(call["id"], OpenCall(call["id"], name, arguments))
    for block in blocks_of(message):
        if _kind(block) in CALL_BLOCKS and _is_id(block.get("id")):
            found.setdefault(
                block["id"], OpenCall(block["id"], _text(block.get("name")), block.get("input"))
            )
    return found


def result_ids(message: Mapping[str, Any]) -> list[CallId]:
    """The ids of the tool calls a message answers, in order, each once."""
    found: dict[CallId, None] = {}
    if message.get("role") == "tool" and _is_id(answered := message.get("tool_call_id")):
        found[answered] = None
    for block in blocks_of(message):
        if _kind(block) in RESULT_BLOCKS:
            named = block.get("tool_call_id", block.get("tool_use_id"))
            if _is_id(named):
                found[named] = None
    return list(found)


def open_calls(messages: Sequence[Mapping[str, Any]]) -> list[OpenCall]:
    """The calls of the last assistant's message without a result, in their order.

    What came after that message may be anything but another answer of the assistant: results and what hooks injected.
    """
    answered: set[CallId] = set()
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return [call for call in _calls_of(message).values() if call.id not in answered]
        answered.update(result_ids(message))
    return []


def missing_results(messages: Sequence[Mapping[str, Any]], content: str) -> list[dict[str, Any]]:
    """A message for each of the `open_calls`."""
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            **({"name": call.name} if call.name else {}),
            "content": content,
        }
        for call in open_calls(messages)
    ]


def is_aside(message: Mapping[str, Any]) -> bool:
    """Whether a message is an instruction or was injected by a hook: it does not show where a turn stands."""
    role, metadata = message.get("role"), message.get("metadata")
    if role == "user":
        return isinstance(metadata, dict) and metadata.get("source") == "hook"
    return role in ("system", "developer")


def _kind(block: Mapping[str, Any]) -> Any:
    kind = block.get("type")
    return kind if isinstance(kind, str) else None


def _is_id(value: Any) -> TypeGuard[CallId]:
    return isinstance(value, str | int) and value != ""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────

_NOT_JSON = 32  # bytes that count for a value without a JSON form
_PICTURE_TOKENS = (
    1600  # what the large providers charge at most for one picture that they scale down
)
_BASE64_PER_TOKEN = (
    67  # of a document: 50 bytes of PDF for a token, between one page of pictures and dense text
)
_MOST_DOCUMENT_TOKENS = (
    50_000  # whatever its size, a document must not seem larger than a usual context window
)
MEDIA = ("image", "audio", "document")


def count_tokens(message: Any, chars_per_token: float) -> int:
    """Tokens of one message, roughly; at least one."""
    media = 0
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and any(map(_may_hold_media, content)):
        rest, media = _without_media(content)
        if media:
            message = {**message, "content": rest}
    return max(1, math.ceil(_json_size(message) / chars_per_token) + media)


def _media_tokens(block: dict[str, Any]) -> int:
    source = block.get("source") if block["type"] == "document" else None
    data = source.get("data") if isinstance(source, dict) else None
    size = len(data) // _BASE64_PER_TOKEN if isinstance(data, str) else 0
    return min(max(size, _PICTURE_TOKENS), _MOST_DOCUMENT_TOKENS)


def _may_hold_media(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("tool_result", *MEDIA)


def _without_media(blocks: list[Any]) -> tuple[list[Any], int]:
    """The blocks without pictures, audio and documents, and the tokens of these; looks into the parts of tool results, too."""
    rest: list[Any] = []
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
                media = [
                    part for part in parts if isinstance(part, dict) and part.get("type") in MEDIA
                ]
                tokens += sum(map(_media_tokens, media))
                others = [part for part in parts if part not in media]
                block = {**block, key: others}  # noqa: PLW2901 — a copy without pictures takes its place
        rest.append(block)
    return rest, tokens


def _json_size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except (
        TypeError,
        RecursionError,
    ):  # integers beyond 64 bits, lone surrogates, values that are not JSON
        return _walked_size(value)


def _walked_size(root: Any) -> int:
    """The same size, give or take, for what the encoder refuses."""
    size, left = 0, [root]
    while left:
        value = left.pop()
        kind = type(value)
        if issubclass(kind, dict):
            left.extend(dict.keys(value))
            left.extend(dict.values(value))
            size += 2 + 2 * len(value)
        elif issubclass(kind, list | tuple):
            left.extend(value)
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
