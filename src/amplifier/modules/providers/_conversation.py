"""Normalises a request's messages for the wire formats and repairs their sequence of tool calls and results.

Messages arrive in several styles: text or blocks, calls as blocks or in ``tool_calls``, results as messages or as blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import attrs

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

# Blocks that no service accepts from the assistant, and from the other roles.
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
    """A message that is not a tool result; an assistant's calls are among the blocks."""

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
    """Entries in order, each call directly followed by its results.

    Attributes:
        entries: The conversation.
        repairs: One record for each repair of the sequence.
        call_ids: Every tool call id in use.
    """

    entries: list[Entry]
    repairs: list[dict[str, Any]]
    call_ids: frozenset[str]


def read_conversation(messages: Iterable[Message]) -> Conversation:
    """Normalise messages and repair the sequence of tool calls and results; the messages are not changed.

    A call without a result gets a placeholder. A result is moved behind its call. A second call with the same id and a
    second result of a call are omitted, and a result without a call becomes user text: no service accepts them.
    """
    entries: list[Entry] = []
    for message in messages:
        entries += _normal(message)
    repairs: list[dict[str, Any]] = []
    asked = {id_ for entry in entries if isinstance(entry, MessageEntry) for id_ in _calls(entry)}
    results: dict[str, ToolResultEntry] = {}
    for entry in entries:
        if isinstance(entry, ToolResultEntry) and entry.call_id in asked:
            if entry.call_id in results:
                repairs.append({"tool_call_id": entry.call_id, "repair": "second result left out"})
            else:
                results[entry.call_id] = entry
    taken = asked | {entry.call_id for entry in entries if isinstance(entry, ToolResultEntry)}
    return Conversation(_in_order(entries, asked, results, repairs), repairs, frozenset(taken))


def used_ids(request: ChatRequest) -> set[str]:
    """Every tool call id in a conversation."""
    return set(read_conversation(request.messages).call_ids)


def calls_in(message: Message) -> list[ToolCall]:
    """The calls of an assistant message, in blocks or under ``tool_calls``, in order and each once."""
    blocks = _blocks(message.content)
    return list(
        {call.id: call for call in calls_among([*blocks, *_listed_calls(message, blocks)])}.values()
    )


def _in_order(
    entries: list[Entry],
    asked: set[str],
    results: dict[str, ToolResultEntry],
    repairs: list[dict[str, Any]],
) -> list[Entry]:
    ordered: list[Entry] = []
    used: set[str] = set()
    for entry in entries:
        if isinstance(entry, ToolResultEntry):
            if entry.call_id not in asked:
                repairs.append(
                    {"tool_call_id": entry.call_id, "repair": "result without a call became text"}
                )
                note = TextBlock(
                    text=f"[result of a tool call that is not in this conversation: {entry.call_id!r}]"
                )
                ordered.append(MessageEntry("user", [note, *entry.parts]))
            continue
        words = _without_second_calls(entry, used, repairs)
        if words.blocks:
            ordered.append(words)
        for call_id in _calls(words):
            result = results.get(call_id)
            if result is None:
                repairs.append({"tool_call_id": call_id, "repair": "result was missing"})
                result = ToolResultEntry(call_id, [TextBlock(text=NO_RESULT)], is_error=True)
            ordered.append(result)
    return ordered


def _without_second_calls(
    words: MessageEntry, used: set[str], repairs: list[dict[str, Any]]
) -> MessageEntry:
    """Remove calls whose id was used before: there is one result, and it belongs to the first."""
    kept: list[ContentBlockUnion] = []
    for block in words.blocks:
        if isinstance(block, ToolCallBlock):
            if block.id in used:
                repairs.append(
                    {"tool_call_id": block.id, "repair": "second call of one id left out"}
                )
                continue
            used.add(block.id)
        kept.append(block)
    return words if len(kept) == len(words.blocks) else MessageEntry(words.role, kept)


def _calls(words: MessageEntry) -> list[str]:
    return [block.id for block in words.blocks if isinstance(block, ToolCallBlock)]


def _normal(message: Message) -> list[Entry]:
    if message.role in ("tool", "function"):
        return _results(message)
    blocks = _blocks(message.content)
    role: Role = message.role  # type: ignore[assignment]  # the other two roles returned above
    if role == "assistant":
        blocks += _listed_calls(message, blocks)
    results: list[Entry] = [
        _result(block) for block in blocks if isinstance(block, ToolResultBlock)
    ]
    misplaced = _NOT_FROM_ASSISTANT if role == "assistant" else _ONLY_FROM_ASSISTANT
    words = [block for block in blocks if not isinstance(block, misplaced)]
    return [*results, MessageEntry(role, words)] if words else results


def _blocks(content: str | Sequence[ContentBlockUnion]) -> list[ContentBlockUnion]:
    if isinstance(content, str):
        return [TextBlock(text=content)] if content else []
    return [block for block in content if not (isinstance(block, TextBlock) and not block.text)]


def _results(message: Message) -> list[Entry]:
    """The results in a tool message: its result blocks, or else its whole content."""
    content = message.content
    if not isinstance(content, str):
        within = [block for block in content if isinstance(block, ToolResultBlock)]
        if within:
            return [_result(block) for block in within]
    parts = _parts(content if isinstance(content, str) else list(content))
    return [ToolResultEntry(message.tool_call_id or "", parts, bool(message.extra.get("is_error")))]


def _result(block: ToolResultBlock) -> ToolResultEntry:
    return ToolResultEntry(
        block.tool_call_id, _parts(block.output), bool(block.extra.get("is_error"))
    )


def _parts(output: Any) -> list[ResultPart]:
    """A tool's output as parts; anything but a list of blocks is one text."""
    if isinstance(output, list) and output and all(_is_block(item) for item in output):
        return [_part(item) for item in output]
    text = output if isinstance(output, str) else as_text(output)
    return [TextBlock(text=text)] if text else []


def _is_block(item: Any) -> bool:
    return (isinstance(item, dict) and isinstance(item.get("type"), str)) or hasattr(item, "type")


def _part(item: Any) -> ResultPart:
    block: Any = from_dict(ContentBlockUnion, item) if isinstance(item, dict) else item
    if isinstance(block, UnknownBlock) and block.type == "audio":
        return TextBlock(text=_note_of_audio(block.extra.get("source")))
    if isinstance(block, TextBlock | ImageBlock | UnknownBlock):
        return block
    return TextBlock(text=as_text(item))


def _note_of_audio(source: Any) -> str:
    """What a model gets instead of audio in a tool's result, which the services of these providers do not accept there."""
    media_type, data = (
        (source.get(key) for key in ("media_type", "data"))
        if isinstance(source, dict)
        else (None, None)
    )
    size = f", {len(data) * 3 // 4} bytes" if isinstance(data, str) else ""
    return f"[audio left out: {str(media_type)[:80] if media_type else 'of unknown type'}{size}; only text and images can be sent]"


def _listed_calls(message: Message, blocks: list[ContentBlockUnion]) -> list[ContentBlockUnion]:
    """Calls that are only in ``tool_calls``, in this project's format or OpenAI's."""
    listed = message.extra.get("tool_calls")
    shown = {block.id for block in blocks if isinstance(block, ToolCallBlock)}
    beside: list[ContentBlockUnion] = []
    for call in listed if isinstance(listed, list) else ():
        given = call if isinstance(call, dict) else getattr(call, "__dict__", {})
        function = given.get("function") or {}
        call_id = given.get("id") or ""
        name = given.get("name") or given.get("tool") or function.get("name") or ""
        arguments = given.get("arguments", function.get("arguments"))
        if call_id and call_id not in shown:
            beside.append(ToolCallBlock(id=call_id, name=name, input=_as_arguments(arguments)))
    return beside


def _as_arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return dict(given) if isinstance(given, dict) else {}


def as_text(value: Any) -> str:
    """A value as JSON text for a model; values without a JSON form become their ``str``."""
    return json.dumps(value, ensure_ascii=False, default=str)
