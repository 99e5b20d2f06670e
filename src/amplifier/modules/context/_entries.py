"""A stored message with what every view asks of it, and which tool calls it makes or answers.

Calls are in ``tool_calls`` or in content blocks, results in messages of the role ``tool`` or in content blocks; both
spellings of block and id that providers use are known. Anything malformed simply has no ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, final

import attrs

SYSTEM_ROLES = frozenset({"system", "developer"})

STEERING = "steering"
"""The ``source``, in the metadata, of messages of the user while a turn runs: it is part of a turn, and begins none."""

NO_PROMPTS = frozenset({"hook", "answer_format", STEERING})
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
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else ()


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
            found.setdefault(block["id"], OpenCall(block["id"], _text(block.get("name")), block.get("input")))
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
        {"role": "tool", "tool_call_id": call.id, **({"name": call.name} if call.name else {}), "content": content}
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
