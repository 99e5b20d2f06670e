"""Finds the tool calls of a conversation and makes ids that it has not used."""

from __future__ import annotations

from collections.abc import Collection

from amplifier.models import ChatRequest, Message, ToolCall, ToolCallBlock, ToolResultBlock
from amplifier.models._definition.shared_list import shared_members


def calls_in(message: Message) -> list[ToolCall]:
    """Return the calls of an assistant message, in blocks or under ``tool_calls``, in order and each once."""
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
    """Return every tool-call id in the conversation."""
    ids: set[str] = set()
    for message in shared_members(request.messages):
        ids.update(call.id for call in calls_in(message))
        if message.tool_call_id:
            ids.add(message.tool_call_id)
        if isinstance(message.content, list):
            ids.update(block.tool_call_id for block in message.content if isinstance(block, ToolResultBlock))
    return ids


def fresh_id(wanted: str, taken: Collection[str]) -> str:
    """Return the wanted id, with a number appended if it is taken."""
    if wanted not in taken:
        return wanted
    number = 2
    while f"{wanted}_{number}" in taken:
        number += 1
    return f"{wanted}_{number}"
