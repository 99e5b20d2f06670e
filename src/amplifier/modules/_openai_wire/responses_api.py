"""From a request to the JSON of the Responses API; pure.

Nothing is kept at the service: every request holds the whole conversation, and the model's thoughts travel with it in
sealed form.
"""

from __future__ import annotations

from typing import Any

import attrs

from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    Degradation,
    ImageBlock,
    ReasoningBlock,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    TextBlock,
    ToolCallBlock,
    UnknownBlock,
    to_dict,
)

from .._llm_provider import (
    CallOptions,
    Conversation,
    EncodedRequest,
    Entry,
    MessageEntry,
    ResultPart,
    ToolResultEntry,
    as_text,
    read_json_schema,
)
from .shared_fields import image_url

_INPUT_PARTS = ("input_file", "input_audio", "input_image")


@attrs.frozen(kw_only=True)
class ResponsesStyle:
    """What the config adds to every request.

    Attributes:
        reasoning_summary: How thoroughly thoughts are summed up; None asks for no summary.
        parallel_tool_calls: Sent if it is not None, with tools.
    """

    reasoning_summary: str | None = None
    parallel_tool_calls: bool | None = None


def encode_responses(
    conversation: Conversation, request: ChatRequest, call: CallOptions, style: ResponsesStyle
) -> EncodedRequest:
    """Write a request."""
    items = [item for entry in conversation.entries for item in _items(entry)]
    encoded = EncodedRequest({"model": call.model, "input": items, "store": False})
    body = encoded.body
    body["include"] = ["reasoning.encrypted_content"]
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": spec.name,
                "description": spec.description or "",
                "parameters": spec.parameters,
                "strict": bool(spec.extra.get("strict", False)),  # left out, it means yes, and few schemas qualify
            }
            for spec in request.tools
        ]
        if call.tool_choice is not None:
            choice = call.tool_choice
            body["tool_choice"] = {"type": "function", "name": choice[0]} if isinstance(choice, tuple) else choice
        if style.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = style.parallel_tool_calls
    chosen = {
        "max_output_tokens": call.max_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "reasoning": _reasoning(call, style),
        "text": _text_format(request),
    }
    body |= {name: value for name, value in chosen.items() if value is not None}
    if request.stop:
        encoded.degradations.append(
            Degradation(requested="stop", actual="not sent", reason="the Responses API has no stop sequences")
        )
    if call.stream:
        body["stream"] = True
    return encoded


def _reasoning(call: CallOptions, style: ResponsesStyle) -> dict[str, Any] | None:
    wanted = {"effort": call.reasoning_effort, "summary": style.reasoning_summary}
    return {name: value for name, value in wanted.items() if value is not None} or None


def _text_format(request: ChatRequest) -> dict[str, Any] | None:
    if isinstance(request.response_format, ResponseFormatJsonSchema):
        name, schema, strict = read_json_schema(request.response_format)
        described: dict[str, Any] = {"type": "json_schema", "name": name, "schema": schema}
        return {"format": described | ({} if strict is None else {"strict": strict})}
    return {"format": {"type": "json_object"}} if isinstance(request.response_format, ResponseFormatJson) else None


def _items(entry: Entry) -> list[dict[str, Any]]:
    if isinstance(entry, ToolResultEntry):
        return [{"type": "function_call_output", "call_id": entry.call_id, "output": _output(entry.parts)}]
    if entry.role == "assistant":
        return [item for block in entry.blocks if (item := _said(block)) is not None]
    return _heard(entry)


def _heard(words: MessageEntry) -> list[dict[str, Any]]:
    parts = [part for block in words.blocks if (part := _part(block)) is not None]
    return [{"type": "message", "role": words.role, "content": parts}] if parts else []


def _said(block: ContentBlockUnion) -> dict[str, Any] | None:
    """One item of the model's; thoughts go back only as this service sealed them."""
    match block:
        case TextBlock():
            kind = "refusal" if block.extra.get("refusal") else "output_text"
            words = {"type": kind, "refusal" if kind == "refusal" else "text": block.text}
            phase = {"phase": block.extra["phase"]} if block.extra.get("phase") else {}
            return {"type": "message", "role": "assistant", "content": [words], **phase}
        case ReasoningBlock():
            sealed = block.extra.get("encrypted_content")
            if not sealed:
                return None
            item = {"type": "reasoning", "summary": block.summary, "encrypted_content": sealed}
            if block.extra.get("id"):
                item["id"] = block.extra["id"]
            return item | ({"content": block.content} if block.content else {})
        case ToolCallBlock():
            item_id = {"id": block.extra["item_id"]} if block.extra.get("item_id") else {}
            arguments = as_text(block.input)
            call = {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": arguments}
            return call | item_id
        case UnknownBlock():
            return to_dict(block)
        case _:
            return None


def _part(block: ContentBlockUnion) -> dict[str, Any] | None:
    if isinstance(block, TextBlock):
        return {"type": "input_text", "text": block.text}
    if isinstance(block, ImageBlock):
        detail = block.source.get("detail") or "auto"
        return {"type": "input_image", "image_url": image_url(block), "detail": detail}
    if isinstance(block, UnknownBlock) and block.type in _INPUT_PARTS:
        return to_dict(block)
    return None


def _output(parts: list[ResultPart]) -> str | list[dict[str, Any]]:
    if all(isinstance(part, TextBlock) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextBlock))
    return [_part(part) or {"type": "input_text", "text": as_text(to_dict(part))} for part in parts]
