"""From a request to the JSON of the Chat Completions API; pure."""

from __future__ import annotations

from typing import Any

import attrs

from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    ImageBlock,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    TextBlock,
    ThinkingBlock,
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
    ToolResultEntry,
    as_text,
    read_json_schema,
)
from .shared_fields import image_url

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers put a model's thoughts; the official API has no such field."""

_USER_PARTS = ("image_url", "input_audio", "file", "video_url")
"""ContentBlocks that are no blocks of ours but parts of this API."""

_SEE_BELOW = "[image: see the next message]"


@attrs.frozen(kw_only=True)
class ChatStyle:
    """Where servers of this API differ.

    Attributes:
        max_tokens_field: What the limit of an answer is called.
        has_developer: Whether there is a role of that name.
        parallel_tool_calls: Sent if it is not None, with tools.
        seed: Sent if it is not None.
    """

    max_tokens_field: str = "max_tokens"
    has_developer: bool = False
    parallel_tool_calls: bool | None = None
    seed: int | None = None


def encode_chat(
    conversation: Conversation, request: ChatRequest, call: CallOptions, style: ChatStyle
) -> EncodedRequest:
    """Write a request."""
    body: dict[str, Any] = {"model": call.model, "messages": _messages(conversation.entries, style)}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": spec.name,
                    "parameters": spec.parameters,
                    **({"description": spec.description} if spec.description else {}),
                    **({"strict": spec.extra["strict"]} if "strict" in spec.extra else {}),
                },
            }
            for spec in request.tools
        ]
        if call.tool_choice is not None:
            body["tool_choice"] = _tool_choice(call)
        if style.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = style.parallel_tool_calls
    chosen = {
        style.max_tokens_field: call.max_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "reasoning_effort": call.reasoning_effort,
        "stop": list(request.stop) if request.stop else None,
        "seed": style.seed,
        "response_format": _response_format(request),
    }
    body |= {name: value for name, value in chosen.items() if value is not None}
    if call.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return EncodedRequest(body)


def _messages(entries: list[Entry], style: ChatStyle) -> list[dict[str, Any]]:
    """Messages in order; pictures among tool results, which the API does not take there, follow as the user's."""
    messages: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []
    for entry in entries:
        if isinstance(entry, ToolResultEntry):
            messages.append(_result(entry, pictures))
            continue
        if pictures:
            messages.append({"role": "user", "content": pictures})
            pictures = []
        if (message := _words(entry, style)) is not None:
            messages.append(message)
    return [*messages, {"role": "user", "content": pictures}] if pictures else messages


def _result(result: ToolResultEntry, pictures: list[dict[str, Any]]) -> dict[str, Any]:
    texts: list[str] = []
    for part in result.parts:
        if isinstance(part, TextBlock):
            texts.append(part.text)
        elif isinstance(part, ImageBlock):
            texts.append(_SEE_BELOW)
            pictures.append(_picture(part))
        else:
            texts.append(as_text(to_dict(part)))
    return {"role": "tool", "tool_call_id": result.call_id, "content": "\n".join(texts)}


def _words(words: MessageEntry, style: ChatStyle) -> dict[str, Any] | None:
    if words.role == "assistant":
        return _assistant(words.blocks)
    role = "system" if words.role == "developer" and not style.has_developer else words.role
    parts = [part for block in words.blocks if (part := _part(block)) is not None]
    if not parts:
        return None
    if all(part.keys() == {"type", "text"} for part in parts):
        return {"role": role, "content": "\n\n".join(part["text"] for part in parts)}
    return {"role": role, "content": parts}


def _assistant(blocks: list[ContentBlockUnion]) -> dict[str, Any] | None:
    """What the model said; its thoughts go back into the field they came from, and nowhere if they came another way."""
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    for field in REASONING_FIELDS:
        thoughts = [
            block.thinking
            for block in blocks
            if isinstance(block, ThinkingBlock) and block.extra.get("reasoning_field") == field
        ]
        if thoughts:
            message[field] = "".join(thoughts)
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": as_text(call.input)}}
            for call in calls
        ]
    return message if text or calls else None


def _part(block: ContentBlockUnion) -> dict[str, Any] | None:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageBlock):
        return _picture(block)
    if isinstance(block, UnknownBlock) and block.type in _USER_PARTS:
        return to_dict(block)
    return None


def _picture(block: ImageBlock) -> dict[str, Any]:
    detail = block.source.get("detail")
    return {"type": "image_url", "image_url": {"url": image_url(block), **({"detail": detail} if detail else {})}}


def _tool_choice(call: CallOptions) -> Any:
    choice = call.tool_choice
    return {"type": "function", "function": {"name": choice[0]}} if isinstance(choice, tuple) else choice


def _response_format(request: ChatRequest) -> dict[str, Any] | None:
    if isinstance(request.response_format, ResponseFormatJsonSchema):
        name, schema, strict = read_json_schema(request.response_format)
        described: dict[str, Any] = {"name": name, "schema": schema}
        return {"type": "json_schema", "json_schema": described | ({} if strict is None else {"strict": strict})}
    return {"type": "json_object"} if isinstance(request.response_format, ResponseFormatJson) else None
