"""Requests and responses of language models between the wire format and JSON, as the published engine translates them."""

from __future__ import annotations

import json
import logging
from typing import Any

from amplifier.errors import ModelError
from amplifier.models import ChatResponse, ImageBlock, TextBlock, UnknownBlock, from_dict, to_dict

from ._codec import decode, encode
from ._wire import ENUMS

logger: logging.Logger = logging.getLogger("amplifier_core._engine")

_ROLES = [name.removeprefix("ROLE_").lower() for name in ENUMS["Role"]]
_VISIBILITIES = {1: "developer", 2: "internal", 3: "user"}
_NUMBERS = {word: number for number, word in _VISIBILITIES.items()}
_PLAIN = (
    "temperature",
    "top_p",
    "max_output_tokens",
    "conversation_id",
    "stream",
    "model",
    "reasoning_effort",
    "timeout",
)


def request_json(proto_bytes: bytes) -> str:
    """A request from the wire as JSON text; messages without content are left out.

    Raises:
        ValueError: The bytes are no request.
    """
    if not isinstance(proto_bytes, bytes):
        raise TypeError(f"{type(proto_bytes).__name__!r} object is not an instance of 'bytes'")
    try:
        request = decode(proto_bytes, "ChatRequest")
    except ValueError as exc:
        raise ValueError(f"Failed to decode proto ChatRequest: {exc}") from exc
    shown: dict[str, Any] = {
        "messages": [_message(message) for message in request["messages"] if _has_content(message)]
    }
    if request["tools"]:
        shown["tools"] = [_tool(tool) for tool in request["tools"]]
    if (answer := _format(request.get("response_format", {}))) is not None:
        shown["response_format"] = answer
    shown |= {name: request[name] for name in _PLAIN if request.get(name)}
    if (metadata := _mapping(request.get("metadata_json"))) is not None:
        shown["metadata"] = metadata
    if choice := request.get("tool_choice"):
        parsed = _parsed(choice) if choice.startswith("{") else None
        shown["tool_choice"] = choice if parsed is None else parsed
    if request["stop"]:
        shown["stop"] = request["stop"]
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def response_bytes(json_str: str) -> bytes:
    """A response in JSON text for the wire; the content goes twice, as text for old readers and as blocks.

    Raises:
        ValueError: The text is no response.
    """
    try:
        given = json.loads(json_str)
        response = from_dict(ChatResponse, given)
        if any(block.get("type") not in _BLOCKS for block in given["content"]):
            raise ValueError(f"unknown content in {given['content']!r}")
    except (ModelError, ValueError, TypeError, AttributeError, KeyError) as exc:
        raise ValueError(f"Failed to deserialize ChatResponse from JSON: {exc}") from exc
    dumped = {name: value for name, value in to_dict(response).items() if value is not None}
    blocks = [{name: value for name, value in block.items() if value is not None} for block in dumped["content"]]
    values: dict[str, Any] = {"content": _text(blocks), "content_blocks": [_wire_block(block) for block in blocks]}
    values["tool_calls"] = [
        {"id": call["id"], "name": call["name"], "arguments_json": _text(call["arguments"])}
        for call in dumped.get("tool_calls", [])
    ]
    values |= {name: dumped[name] for name in ("degradation", "finish_reason") if name in dumped}
    if "usage" in dumped:
        values["usage"] = _usage(dumped["usage"])
    if "metadata" in dumped:
        values["metadata_json"] = _text(dumped["metadata"])
    return encode(values, "ChatResponse")


def plain_block(block: TextBlock | ImageBlock | UnknownBlock) -> dict[str, Any]:
    """A block of a tool result without what is not set."""
    return {name: value for name, value in to_dict(block).items() if value is not None}


# ── from the wire ──


def _has_content(message: dict[str, Any]) -> bool:
    if "text_content" in message or "block_content" in message:
        return True
    logger.warning("a message without content is left out of a request")
    return False


def _message(message: dict[str, Any]) -> dict[str, Any]:
    number = message.get("role", 0)
    role = _ROLES[number] if 0 < number < len(_ROLES) else "user"
    blocks = message.get("block_content", {}).get("blocks", [])
    content = message["text_content"] if "text_content" in message else [_block(block) for block in blocks]
    shown = {"role": role, "content": content}
    shown |= {name: message[name] for name in ("name", "tool_call_id") if message.get(name)}
    metadata = _mapping(message.get("metadata_json"))
    return shown if metadata is None else {**shown, "metadata": metadata}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    kind = next((name for name in block if name != "visibility"), "text_block")
    given = block.get(kind, {})
    read = _READERS[kind](given)
    shown = {"type": kind.removesuffix("_block"), **read}
    visibility = _VISIBILITIES.get(block.get("visibility", 0))
    return shown if visibility is None else {**shown, "visibility": visibility}


def _thinking(given: dict[str, Any]) -> dict[str, Any]:
    shown = {"thinking": given.get("thinking", "")}
    if given.get("signature"):
        shown["signature"] = given["signature"]
    content = _parsed(given.get("content"))
    return {**shown, "content": content} if isinstance(content, list) else shown


_READERS: dict[str, Any] = {
    "text_block": lambda given: {"text": given.get("text", "")},
    "thinking_block": _thinking,
    "redacted_thinking_block": lambda given: {"data": given.get("data", "")},
    "tool_call_block": lambda given: {
        "id": given.get("id", ""),
        "name": given.get("name", ""),
        "input": _mapping(given.get("input_json")) or {},
    },
    "tool_result_block": lambda given: {
        "tool_call_id": given.get("tool_call_id", ""),
        "output": _parsed(given.get("output_json")),
    },
    "image_block": lambda given: {"source": _mapping(given.get("source_json")) or {}},
    "reasoning_block": lambda given: {
        name: [_parsed(text) for text in given.get(name, [])] for name in ("content", "summary")
    },
}
_BLOCKS = frozenset(name.removesuffix("_block") for name in _READERS)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": tool.get("name", ""), "parameters": _mapping(tool.get("parameters_json")) or {}}
    return {**shown, "description": tool["description"]} if tool.get("description") else shown


def _format(given: dict[str, Any]) -> dict[str, Any] | None:
    if "json_schema" in given:
        schema = given["json_schema"]
        shown = {"type": "json_schema", "schema": _mapping(schema.get("schema_json")) or {}}
        return {**shown, "strict": schema["strict"]} if "strict" in schema else shown
    return next(({"type": name} for name in ("text", "json") if name in given), None)


def _parsed(text: str | None) -> Any:
    """A value from JSON text; None, with a line in the log, for text that is none."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError as exc:
        logger.warning("a part of a request is not JSON: %s", exc)
        return None


def _mapping(text: str | None) -> dict[str, Any] | None:
    value = _parsed(text)
    return value if isinstance(value, dict) else None


# ── to the wire ──


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _wire_block(block: dict[str, Any]) -> dict[str, Any]:
    kind = block["type"]
    written: dict[str, Any] = {f"{kind}_block": _WRITERS[kind](block)}
    if "visibility" in block:
        written["visibility"] = _NUMBERS[block["visibility"]]
    return written


_WRITERS: dict[str, Any] = {
    "text": lambda block: {"text": block["text"]},
    "thinking": lambda block: {
        "thinking": block["thinking"],
        "signature": block.get("signature", ""),
        "content": _text(block["content"]) if "content" in block else "",
    },
    "redacted_thinking": lambda block: {"data": block["data"]},
    "tool_call": lambda block: {"id": block["id"], "name": block["name"], "input_json": _text(block["input"])},
    "tool_result": lambda block: {
        "tool_call_id": block["tool_call_id"],
        "output_json": _text(block.get("output")),
    },
    "image": lambda block: {
        "media_type": str(block["source"].get("media_type", "")),
        "data": str(block["source"].get("data", "")).encode(),
        "source_json": _text(block["source"]),
    },
    "reasoning": lambda block: {name: [_text(part) for part in block[name]] for name in ("content", "summary")},
}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    names = {
        "prompt_tokens": "input_tokens",
        "completion_tokens": "output_tokens",
        "total_tokens": "total_tokens",
        "reasoning_tokens": "reasoning_tokens",
        "cache_read_tokens": "cache_read_tokens",
        "cache_creation_tokens": "cache_write_tokens",
        "cost_usd": "cost_usd",
    }
    return {wire: usage[name] for wire, name in names.items() if usage.get(name) is not None}
