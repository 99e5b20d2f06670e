"""Requests and responses of language models between the wire format and JSON, which the foundation library's gRPC adapter imports.

Needs protobuf; without it this file cannot be imported, which the adapter expects.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped,import-not-found,unused-ignore]

from amplifier.models import ChatResponse, from_dict, to_dict

from ._grpc_gen import amplifier_module_pb2 as wire

__all__ = ["json_to_proto_chat_response", "proto_chat_request_to_json"]

_VISIBILITIES = {1: "developer", 2: "internal", 3: "user"}
_PLAIN = (
    *("temperature", "top_p", "max_output_tokens", "conversation_id", "stream"),
    *("model", "reasoning_effort", "timeout", "stop"),
)
_BLOCKS = {
    "text": {"text": "text"},
    "thinking": {"thinking": "thinking", "signature": "signature", "content": "content:json"},
    "redacted_thinking": {"data": "data"},
    "tool_call": {"id": "id", "name": "name", "input": "input_json:json"},
    "tool_result": {"tool_call_id": "tool_call_id", "output": "output_json:json"},
    "image": {"source": "source_json:json"},
    "reasoning": {"content": "content:list", "summary": "summary:list"},
}
"""By the type of a block, where each of its members is on the wire, and whether it is JSON text there, or a list of that."""
_OPTIONAL = {"signature", "content"}
_USAGE = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "total_tokens": "total_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "cache_read_tokens": "cache_read_tokens",
    "cache_creation_tokens": "cache_write_tokens",
    "cost_usd": "cost_usd",
}


def proto_chat_request_to_json(proto_bytes: bytes) -> str:
    """A request of the published wire format as JSON text; messages without content are left out.

    Raises:
        ValueError: The bytes are no request.
    """
    try:
        request = _as_dict(wire.ChatRequest.FromString(proto_bytes))
    except DecodeError as exc:
        raise ValueError(f"Failed to decode proto ChatRequest: {exc}") from exc
    messages = request.get("messages", [])
    shown: dict[str, Any] = {
        "messages": [_message(each) for each in messages if {"text_content", "block_content"} & each.keys()]
    }
    if "tools" in request:
        shown["tools"] = [_tool(tool) for tool in request["tools"]]
    if (answer := _format(request.get("response_format", {}))) is not None:
        shown["response_format"] = answer
    shown |= {name: request[name] for name in _PLAIN if request.get(name)}
    if "metadata_json" in request:
        shown["metadata"] = json.loads(request["metadata_json"])
    if choice := request.get("tool_choice"):
        shown["tool_choice"] = json.loads(choice) if choice.startswith("{") else choice
    return _text(shown)


def json_to_proto_chat_response(json_str: str) -> bytes:
    """A response in JSON text as bytes of the published wire format; the content goes twice, as text for old readers and as blocks.

    Raises:
        ValueError: The text is no response.
    """
    response = _without_none(to_dict(from_dict(ChatResponse, json.loads(json_str))))
    blocks = [_without_none(block) for block in response["content"]]
    values: dict[str, Any] = {"content": _text(blocks), "content_blocks": [_wire_block(block) for block in blocks]}
    values["tool_calls"] = [
        {"id": call["id"], "name": call["name"], "arguments_json": _text(call["arguments"])}
        for call in response.get("tool_calls", [])
    ]
    values |= {name: response[name] for name in ("degradation", "finish_reason") if name in response}
    usage = response.get("usage")
    if usage is not None:
        values["usage"] = {there: usage[here] for there, here in _USAGE.items() if usage.get(here) is not None}
    if "metadata" in response:
        values["metadata_json"] = _text(response["metadata"])
    written: bytes = wire.ChatResponse(**values).SerializeToString()
    return written


def _as_dict(message: Any) -> dict[str, Any]:
    """What is set in a message, by name."""
    return {field.name: _plain(value) for field, value in message.ListFields()}


def _plain(value: Any) -> Any:
    if hasattr(value, "ListFields"):
        return _as_dict(value)
    return value if isinstance(value, str | bytes | int | float) else [_plain(member) for member in value]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role = wire.Role.Name(message.get("role", 0)).removeprefix("ROLE_").lower()
    content = message.get("text_content")
    if content is None:
        content = [_block(block) for block in message["block_content"].get("blocks", [])]
    shown = {"role": "user" if role == "unspecified" else role, "content": content}
    shown |= {name: message[name] for name in ("name", "tool_call_id") if name in message}
    return {**shown, "metadata": json.loads(message["metadata_json"])} if "metadata_json" in message else shown


def _block(block: dict[str, Any]) -> dict[str, Any]:
    kind = next((name for name in block if name != "visibility"), "text_block")
    given, kind = block.get(kind, {}), kind.removesuffix("_block")
    shown: dict[str, Any] = {"type": kind}
    for name, there in _BLOCKS[kind].items():
        address, _, form = there.partition(":")
        value = given.get(address)
        if form == "list":
            shown[name] = [json.loads(text) for text in value or ()]
        elif value or name not in _OPTIONAL:
            shown[name] = value or "" if not form else json.loads(value or "null")
    visibility = _VISIBILITIES.get(block.get("visibility", 0))
    return shown if visibility is None else {**shown, "visibility": visibility}


def _wire_block(block: dict[str, Any]) -> dict[str, Any]:
    kind = block["type"]
    if kind not in _BLOCKS:
        raise ValueError(f"Failed to deserialize ChatResponse from JSON: unknown content of type {kind!r}")
    written: dict[str, Any] = {}
    for name, there in _BLOCKS[kind].items():
        address, _, form = there.partition(":")
        if form == "list":
            written[address] = [_text(part) for part in block[name]]
        elif name in block:
            written[address] = _text(block[name]) if form else block[name]
    if kind == "image":
        source = block["source"]
        written |= {"media_type": str(source.get("media_type", "")), "data": str(source.get("data", "")).encode()}
    shown = {f"{kind}_block": written}
    number = next((number for number, word in _VISIBILITIES.items() if word == block.get("visibility")), None)
    return shown if number is None else {**shown, "visibility": number}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    parameters = json.loads(tool.get("parameters_json") or "{}")
    shown = {"name": tool.get("name", ""), "parameters": parameters}
    return {**shown, "description": tool["description"]} if "description" in tool else shown


def _format(given: dict[str, Any]) -> dict[str, Any] | None:
    if "json_schema" in given:
        schema = given["json_schema"]
        shown = {"type": "json_schema", "schema": json.loads(schema.get("schema_json") or "{}")}
        return {**shown, "strict": schema["strict"]} if "strict" in schema else shown
    return next(({"type": name} for name in ("text", "json") if name in given), None)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
