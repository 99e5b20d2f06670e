"""Normalise the messages of a request, and repair their sequence of tool calls and results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from amplifier._internal.json import JSON
from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    ImageBlock,
    Message,
    ReasoningBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
    from_dict,
)

from ._streams import calls_among

Role: TypeAlias = Literal["system", "developer", "user", "assistant"]
"""The role of a message that is not a tool result."""

ResultPart: TypeAlias = TextBlock | ImageBlock | UnknownBlock
"""A part of a tool result."""

# No service accepts these blocks from the assistant, or from the other roles.
_NOT_FROM_ASSISTANT = (ToolResultBlock, ImageBlock)
_ONLY_FROM_ASSISTANT = (
    ToolResultBlock,
    ToolCallBlock,
    ThinkingBlock,
    RedactedThinkingBlock,
    ReasoningBlock,
)

NO_RESULT = "[no result was recorded for this call]"


@attrs.frozen
class MessageEntry:
    """A message other than a tool result. The assistant's calls are among its blocks."""

    role: Role
    blocks: list[ContentBlockUnion]


@attrs.frozen
class ToolResultEntry:
    """The result of a tool call."""

    call_id: str
    parts: list[ResultPart]
    is_error: bool = False


Entry: TypeAlias = MessageEntry | ToolResultEntry


@attrs.frozen
class Conversation:
    """The entries of a conversation. Results directly follow their calls.

    Attributes:
        entries: The entries in order.
        repairs: One record for each repair of the sequence.
        call_ids: The ids of all tool calls and results.
    """

    entries: list[Entry]
    repairs: list[dict[str, JSON]]
    call_ids: frozenset[str]


def read_conversation(messages: Iterable[Message]) -> Conversation:
    """Normalise messages, without changing them, and repair the sequence of calls and results.

    Messages come in several styles: text or blocks, calls as blocks or in ``tool_calls``, results
    as messages or as blocks.

    A call without a result gets a placeholder. A result is moved to directly after its call. No
    service accepts a second call with the same id, a second result for a call, or a result without
    a call. The first two are omitted, and the last becomes text from the user.
    """
    entries: list[Entry] = []
    for message in messages:
        entries += _normal(message)
    repairs: list[dict[str, JSON]] = []
    called = {id_ for entry in entries if isinstance(entry, MessageEntry) for id_ in _calls(entry)}
    results: dict[str, ToolResultEntry] = {}
    for entry in entries:
        if isinstance(entry, ToolResultEntry) and entry.call_id in called:
            if entry.call_id in results:
                repairs.append({"tool_call_id": entry.call_id, "repair": "second result left out"})
            else:
                results[entry.call_id] = entry
    taken = called | {entry.call_id for entry in entries if isinstance(entry, ToolResultEntry)}
    return Conversation(_in_order(entries, called, results, repairs), repairs, frozenset(taken))


def used_ids(request: ChatRequest) -> set[str]:
    """Return the ids of all tool calls and results in a request."""
    return set(read_conversation(request.messages).call_ids)


def calls_in(message: Message) -> list[ToolCall]:
    """Return the unique calls in the blocks or ``tool_calls`` of an assistant message, in order."""
    blocks = _blocks(message.content)
    return list(
        {call.id: call for call in calls_among([*blocks, *_listed_calls(message, blocks)])}.values()
    )


def _in_order(
    entries: list[Entry],
    called: set[str],
    results: dict[str, ToolResultEntry],
    repairs: list[dict[str, JSON]],
) -> list[Entry]:
    ordered: list[Entry] = []
    used: set[str] = set()
    for entry in entries:
        if isinstance(entry, ToolResultEntry):
            if entry.call_id not in called:
                repairs.append(
                    {"tool_call_id": entry.call_id, "repair": "result without a call became text"}
                )
                note = TextBlock(
                    text="[result of a tool call that is not in this conversation: "
                    f"{entry.call_id!r}]"
                )
                ordered.append(MessageEntry("user", [note, *entry.parts]))
            continue
        message = _without_second_calls(entry, used, repairs)
        if message.blocks:
            ordered.append(message)
        for call_id in _calls(message):
            result = results.get(call_id)
            if result is None:
                repairs.append({"tool_call_id": call_id, "repair": "result was missing"})
                result = ToolResultEntry(call_id, [TextBlock(text=NO_RESULT)], is_error=True)
            ordered.append(result)
    return ordered


def _without_second_calls(
    message: MessageEntry, used: set[str], repairs: list[dict[str, JSON]]
) -> MessageEntry:
    """Remove calls that repeat the id of an earlier call. The result belongs to the first call."""
    kept: list[ContentBlockUnion] = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            if block.id in used:
                repairs.append(
                    {"tool_call_id": block.id, "repair": "second call of one id left out"}
                )
                continue
            used.add(block.id)
        kept.append(block)
    return message if len(kept) == len(message.blocks) else MessageEntry(message.role, kept)


def _calls(message: MessageEntry) -> list[str]:
    return [block.id for block in message.blocks if isinstance(block, ToolCallBlock)]


def _normal(message: Message) -> list[Entry]:
    if message.role in ("tool", "function"):
        return _results(message)
    blocks = _blocks(message.content)
    # Messages with the other two roles have already been returned.
    role: Role = message.role  # type: ignore[assignment]
    if role == "assistant":
        blocks += _listed_calls(message, blocks)
    results: list[Entry] = [
        _result(block) for block in blocks if isinstance(block, ToolResultBlock)
    ]
    misplaced = _NOT_FROM_ASSISTANT if role == "assistant" else _ONLY_FROM_ASSISTANT
    kept = [block for block in blocks if not isinstance(block, misplaced)]
    return [*results, MessageEntry(role, kept)] if kept else results


def _blocks(content: str | Sequence[ContentBlockUnion]) -> list[ContentBlockUnion]:
    if isinstance(content, str):
        return [TextBlock(text=content)] if content else []
    return [block for block in content if not (isinstance(block, TextBlock) and not block.text)]


def _results(message: Message) -> list[Entry]:
    """Return the results in a tool message: its result blocks, or its whole content."""
    content = message.content
    if not isinstance(content, str):
        blocks = [block for block in content if isinstance(block, ToolResultBlock)]
        if blocks:
            return [_result(block) for block in blocks]
    parts = _parts(content if isinstance(content, str) else list(content))
    return [ToolResultEntry(message.tool_call_id or "", parts, bool(message.extra.get("is_error")))]


def _result(block: ToolResultBlock) -> ToolResultEntry:
    return ToolResultEntry(
        block.tool_call_id, _parts(block.output), bool(block.extra.get("is_error"))
    )


def _parts(output: object) -> list[ResultPart]:
    """Return a tool's output as parts. Anything other than a list of blocks becomes one text."""
    if isinstance(output, list) and output and all(_is_block(item) for item in output):
        return [_part(item) for item in output]
    text = output if isinstance(output, str) else as_text(output)
    return [TextBlock(text=text)] if text else []


def _is_block(item: object) -> bool:
    return (isinstance(item, dict) and isinstance(item.get("type"), str)) or hasattr(item, "type")


def _part(item: Any) -> ResultPart:
    block: Any = from_dict(ContentBlockUnion, item) if isinstance(item, dict) else item
    if isinstance(block, UnknownBlock) and block.type == "audio":
        return TextBlock(text=_note_of_audio(block.extra.get("source")))
    if isinstance(block, TextBlock | ImageBlock | UnknownBlock):
        return block
    return TextBlock(text=as_text(item))


def _note_of_audio(source: object) -> str:
    """Return a text to replace audio in a tool's result. No service accepts audio there."""
    media_type, data = (
        (source.get(key) for key in ("media_type", "data"))
        if isinstance(source, dict)
        else (None, None)
    )
    size = f", {len(data) * 3 // 4} bytes" if isinstance(data, str) else ""
    kind = str(media_type)[:80] if media_type else "of unknown type"
    return f"[audio left out: {kind}{size}; only text and images can be sent]"


def _listed_calls(message: Message, blocks: list[ContentBlockUnion]) -> list[ContentBlockUnion]:
    """Return the calls that appear only in ``tool_calls``, in our format or in OpenAI's."""
    listed = message.extra.get("tool_calls")
    block_ids = {block.id for block in blocks if isinstance(block, ToolCallBlock)}
    calls: list[ContentBlockUnion] = []
    for item in listed if isinstance(listed, list) else ():
        call = item if isinstance(item, dict) else getattr(item, "__dict__", {})
        function = call.get("function") or {}
        call_id = call.get("id") or ""
        name = call.get("name") or call.get("tool") or function.get("name") or ""
        arguments = call.get("arguments", function.get("arguments"))
        if call_id and call_id not in block_ids:
            calls.append(ToolCallBlock(id=call_id, name=name, input=_as_arguments(arguments)))
    return calls


def _as_arguments(value: object) -> dict[str, JSON]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    """Return a value as JSON text for a model. Values without a JSON form become their ``str``."""
    return json.dumps(value, ensure_ascii=False, default=str)
