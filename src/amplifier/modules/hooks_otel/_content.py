"""What is asked and answered, in the form of the conventions: JSON text without secrets, of limited length."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from amplifier._json import redact_secrets
from amplifier.models import ChatRequest, ChatResponse, Message, ToolResult, to_dict

_CUT = "… (cut)"
_INSTRUCTIONS = ("system", "developer")


def input_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """The messages of a request, the instructions aside."""
    return [
        {"role": message.role, "parts": _parts(message)}
        for message in request.messages
        if message.role not in _INSTRUCTIONS
    ]


def system_instructions(request: ChatRequest) -> list[dict[str, Any]]:
    """The instructions of a request."""
    return [part for message in request.messages if message.role in _INSTRUCTIONS for part in _parts(message)]


def output_messages(response: ChatResponse) -> list[dict[str, Any]]:
    """The message of a response."""
    parts = [_part(block) for block in _dicts(response.content)]
    return [{"role": "assistant", "parts": parts, "finish_reason": response.finish_reason or ""}]


def text_message(role: str, text: str) -> list[dict[str, Any]]:
    """A message that is text."""
    return [{"role": role, "parts": [{"type": "text", "content": text}]}]


def result_content(result: ToolResult) -> Any:
    """What a tool returned."""
    return result.output if result.success else {"error": result.error}


def as_attribute(value: Any, longest: int) -> str:
    """A content as the value of an attribute; secrets are removed before it is cut."""
    text = json.dumps(redact_secrets(value), ensure_ascii=False, default=str)
    return text if len(text) <= longest else f"{text[:longest]}{_CUT}"


def _parts(message: Message) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        if message.tool_call_id is not None:
            return [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}]
        return [{"type": "text", "content": message.content}]
    return [_part(block) for block in _dicts(message.content)]


def _dicts(blocks: Iterable[Any]) -> list[dict[str, Any]]:
    return [to_dict(block) for block in blocks]


def _part(block: dict[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "content": block.get("text")}
    if kind == "thinking":
        return {"type": "reasoning", "content": block.get("thinking")}
    if kind == "tool_call":
        return {"type": "tool_call", "id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
    if kind == "tool_result":
        return {"type": "tool_call_response", "id": block.get("tool_call_id"), "response": block.get("output")}
    return {"type": str(kind)}  # images and the like are too large for an attribute
