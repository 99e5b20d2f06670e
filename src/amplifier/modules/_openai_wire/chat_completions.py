"""Requests of OpenAI's Chat Completions API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, final

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
from .chat_completions_reader import ChatCompletionsReader
from .shared_fields import REASONING_FIELDS, image_url

_USER_PARTS = ("image_url", "input_audio", "file", "video_url")
"""Types of blocks that the models do not define but this API accepts from the user."""

_SEE_BELOW = "[image: see the next message]"


@final
@attrs.frozen(kw_only=True)
class ChatCompletions:
    """The Chat Completions API: the older one, which many servers implement.

    Attributes:
        max_tokens_field: The name of the limit on output tokens.
        has_developer: Whether the server knows the role ``developer``.
        parallel_tool_calls: Sent with tools if it is not None.
        seed: Sent if it is not None.
    """

    path: ClassVar[str] = "/chat/completions"
    always_limits: ClassVar[bool] = False

    max_tokens_field: str = "max_tokens"
    has_developer: bool = False
    parallel_tool_calls: bool | None = None
    seed: int | None = None

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Encode a request as JSON."""
        messages = _messages(conversation.entries, has_developer=self.has_developer)
        body: dict[str, Any] = {"model": call.model, "messages": messages}
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
            choice = call.tool_choice
            if choice is not None:
                body["tool_choice"] = (
                    {"type": "function", "function": {"name": choice[0]}} if isinstance(choice, tuple) else choice
                )
            if self.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = self.parallel_tool_calls
        optional = {
            self.max_tokens_field: call.max_tokens,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "reasoning_effort": call.reasoning_effort,
            "stop": list(request.stop) if request.stop else None,
            "seed": self.seed,
            "response_format": _response_format(request),
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        if call.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return EncodedRequest(body)

    def reader(self, taken_ids: Iterable[str]) -> ChatCompletionsReader:
        """A reader for one response."""
        return ChatCompletionsReader(taken_ids)


def _messages(entries: list[Entry], *, has_developer: bool) -> list[dict[str, Any]]:
    """Messages in order; images in tool results, which the API does not accept there, follow in a user message."""
    messages: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for entry in entries:
        if isinstance(entry, ToolResultEntry):
            messages.append(_result(entry, images))
            continue
        if images:
            messages.append({"role": "user", "content": images})
            images = []
        if (message := _message(entry, has_developer=has_developer)) is not None:
            messages.append(message)
    return [*messages, {"role": "user", "content": images}] if images else messages


def _result(result: ToolResultEntry, images: list[dict[str, Any]]) -> dict[str, Any]:
    texts: list[str] = []
    for part in result.parts:
        if isinstance(part, TextBlock):
            texts.append(part.text)
        elif isinstance(part, ImageBlock):
            texts.append(_SEE_BELOW)
            images.append(_image(part))
        else:
            texts.append(as_text(to_dict(part)))
    return {"role": "tool", "tool_call_id": result.call_id, "content": "\n".join(texts)}


def _message(entry: MessageEntry, *, has_developer: bool) -> dict[str, Any] | None:
    if entry.role == "assistant":
        return _assistant(entry.blocks)
    role = "system" if entry.role == "developer" and not has_developer else entry.role
    parts = [part for block in entry.blocks if (part := _part(block)) is not None]
    if not parts:
        return None
    if all(part.keys() == {"type", "text"} for part in parts):
        return {"role": role, "content": "\n\n".join(part["text"] for part in parts)}
    return {"role": role, "content": parts}


def _assistant(blocks: list[ContentBlockUnion]) -> dict[str, Any] | None:
    """An assistant message; reasoning goes back into the field it came from, or is omitted if it came from another API."""
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    for field in REASONING_FIELDS:
        reasoning = [
            block.thinking
            for block in blocks
            if isinstance(block, ThinkingBlock) and block.extra.get("reasoning_field") == field
        ]
        if reasoning:
            message[field] = "".join(reasoning)
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
        return _image(block)
    if isinstance(block, UnknownBlock) and block.type in _USER_PARTS:
        return to_dict(block)
    return None


def _image(block: ImageBlock) -> dict[str, Any]:
    detail = block.source.get("detail")
    return {"type": "image_url", "image_url": {"url": image_url(block), **({"detail": detail} if detail else {})}}


def _response_format(request: ChatRequest) -> dict[str, Any] | None:
    if isinstance(request.response_format, ResponseFormatJsonSchema):
        name, schema, strict = read_json_schema(request.response_format)
        described: dict[str, Any] = {"name": name, "schema": schema}
        return {"type": "json_schema", "json_schema": described | ({} if strict is None else {"strict": strict})}
    return {"type": "json_object"} if isinstance(request.response_format, ResponseFormatJson) else None
