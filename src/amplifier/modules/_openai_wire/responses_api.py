"""Requests of OpenAI's Responses API.

The service stores nothing: every request contains the whole conversation, with the model's reasoning in encrypted form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, final

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
    ResultPart,
    ToolResultEntry,
    as_text,
    read_json_schema,
)
from .responses_api_reader import ResponsesApiReader
from .shared_fields import image_url

_INPUT_PARTS = ("input_file", "input_audio", "input_image")


@final
@attrs.frozen(kw_only=True)
class ResponsesApi:
    """The Responses API: the newer one, which accepts encrypted reasoning of earlier turns.

    Attributes:
        reasoning_summary: How detailed the summary of the reasoning is; None requests no summary.
        parallel_tool_calls: Sent with tools if it is not None.
    """

    path: ClassVar[str] = "/responses"
    always_limits: ClassVar[bool] = False

    reasoning_summary: str | None = None
    parallel_tool_calls: bool | None = None

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Encode a request as JSON."""
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
                    "strict": bool(spec.extra.get("strict", False)),  # the default is true, which few schemas satisfy
                }
                for spec in request.tools
            ]
            if call.tool_choice is not None:
                choice = call.tool_choice
                body["tool_choice"] = {"type": "function", "name": choice[0]} if isinstance(choice, tuple) else choice
            if self.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = self.parallel_tool_calls
        reasoning = {"effort": call.reasoning_effort, "summary": self.reasoning_summary}
        optional = {
            "max_output_tokens": call.max_tokens,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "reasoning": {name: value for name, value in reasoning.items() if value is not None} or None,
            "text": _text_format(request),
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        if request.stop:
            encoded.degradations.append(
                Degradation(requested="stop", actual="not sent", reason="the Responses API has no stop sequences")
            )
        if call.stream:
            body["stream"] = True
        return encoded

    def reader(self, taken_ids: Iterable[str]) -> ResponsesApiReader:
        """A reader for one response."""
        return ResponsesApiReader(taken_ids)


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
        return [item for block in entry.blocks if (item := _assistant_item(block)) is not None]
    parts = [part for block in entry.blocks if (part := _part(block)) is not None]
    return [{"type": "message", "role": entry.role, "content": parts}] if parts else []


def _assistant_item(block: ContentBlockUnion) -> dict[str, Any] | None:
    """One item of an assistant message; only reasoning that this service encrypted goes back."""
    match block:
        case TextBlock():
            kind = "refusal" if block.extra.get("refusal") else "output_text"
            content = {"type": kind, "refusal" if kind == "refusal" else "text": block.text}
            phase = {"phase": block.extra["phase"]} if block.extra.get("phase") else {}
            return {"type": "message", "role": "assistant", "content": [content], **phase}
        case ReasoningBlock():
            encrypted = block.extra.get("encrypted_content")
            if not encrypted:
                return None
            item = {"type": "reasoning", "summary": block.summary, "encrypted_content": encrypted}
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
