"""Encodes a request for the server, which has OpenAI's Chat Completions API.

The chat template of a small model knows few roles. So the first system messages become one; a later one, which many
templates reject, becomes a note in the user's role. What the model cannot read (reasoning of other models, images) is omitted,
and `EncodedRequest.omitted` lists it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs

from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    ImageBlock,
    ResponseFormatJsonSchema,
    TextBlock,
    ToolCallBlock,
    UnknownBlock,
)

from .._llm_provider import Entry, MessageEntry, ToolResultEntry, read_conversation, read_json_schema
from ._options import Options


@attrs.frozen
class EncodedRequest:
    """A request in the server's format.

    Attributes:
        body: The JSON.
        repaired: Ids of tool calls whose sequence of call and result was repaired.
        omitted: Types of blocks that were omitted.
        call_ids: Ids of tool calls in the conversation.
    """

    body: dict[str, Any]
    repaired: tuple[str, ...]
    omitted: tuple[str, ...]
    call_ids: frozenset[str]


def encode(request: ChatRequest, options: Options) -> EncodedRequest:
    """Encode a request, which is not changed."""
    conversation = read_conversation(request.messages)
    encoder = _MessageEncoder()
    for entry in conversation.entries:
        encoder.add(entry)
    body: dict[str, Any] = {
        "messages": encoder.messages or [{"role": "user", "content": ""}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_output_tokens or options.max_tokens,
    }
    optional = {
        "temperature": request.temperature if request.temperature is not None else options.temperature,
        "top_p": request.top_p,
        "stop": request.stop or None,
        "seed": options.seed,
        "response_format": _response_format(request),
    }
    body |= {key: value for key, value in optional.items() if value is not None}
    if request.tools and options.offer_tools and request.tool_choice != "none":
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": spec.name, "description": spec.description or "", "parameters": spec.parameters},
            }
            for spec in request.tools
        ]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
    repaired = tuple(repair["tool_call_id"] for repair in conversation.repairs)
    return EncodedRequest(body, repaired, tuple(dict.fromkeys(encoder.omitted)), conversation.call_ids)


class _MessageEncoder:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.omitted: list[str] = []

    def add(self, entry: Entry) -> None:
        if isinstance(entry, ToolResultEntry):
            text = self._text(entry.parts)
            self.messages.append({"role": "tool", "tool_call_id": entry.call_id, "content": text})
        elif entry.role in ("system", "developer"):
            self._add_system(self._text(entry.blocks))
        elif entry.role == "assistant":
            self._add_assistant(entry)
        else:
            self._add_text("user", self._text(entry.blocks))

    def _add_system(self, text: str) -> None:
        if not self.messages:
            self.messages.append({"role": "system", "content": text})
        elif self.messages[-1]["role"] == "system":
            self.messages[-1]["content"] += f"\n\n{text}"
        else:
            self._add_text("user", f"[note from the system]\n{text}")

    def _add_assistant(self, entry: MessageEntry) -> None:
        calls = [
            {
                "id": block.id,
                "type": "function",
                "function": {"name": block.name, "arguments": json.dumps(block.input, default=str)},
            }
            for block in entry.blocks
            if isinstance(block, ToolCallBlock)
        ]
        if calls:
            self.messages.append({"role": "assistant", "content": self._text(entry.blocks), "tool_calls": calls})
        else:
            self._add_text("assistant", self._text(entry.blocks))

    def _add_text(self, role: str, text: str) -> None:
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == role and "tool_calls" not in last:  # templates require alternating roles
            last["content"] = f"{last['content']}\n\n{text}"
        else:
            self.messages.append({"role": role, "content": text})

    def _text(self, blocks: Sequence[ContentBlockUnion]) -> str:
        texts = []
        for block in blocks:
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ImageBlock | UnknownBlock):
                self.omitted.append(block.type)
                texts.append(f"[{block.type} left out: this model reads text only]")
        return "\n".join(texts).encode("utf-8", "replace").decode("utf-8")  # a lone surrogate has no UTF-8 form


def _response_format(request: ChatRequest) -> dict[str, Any] | None:
    requested = request.response_format
    if requested is None or requested.type == "text":
        return None
    if not isinstance(requested, ResponseFormatJsonSchema):
        return {"type": "json_object"}
    _, schema, _ = read_json_schema(requested)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
