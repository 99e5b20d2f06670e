"""Content blocks, messages, the tools a model is offered and the calls it makes, requests to a language model, and its responses.

Content blocks keep unknown members in `extra`. A block of an unknown type becomes an `UnknownBlock` and is written back exactly as it came, so that a
newer provider and an older kernel get along.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import attrs

from ._base import Model, OpenModel, model

Visibility: TypeAlias = Literal["internal", "developer", "user"]
"""Who a block is meant for; None leaves it to the application."""


@model
class TextBlock(OpenModel):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str
    visibility: Visibility | None = None


@model
class ThinkingBlock(OpenModel):
    """The model's reasoning before its answer.

    Attributes:
        signature: The provider's signature of the reasoning; the provider refuses it unless it comes back unchanged.
    """

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str | None = None
    visibility: Visibility | None = None
    content: list[Any] | None = None


@model
class RedactedThinkingBlock(OpenModel):
    """Reasoning that the provider encrypts, as an opaque text that must come back unchanged."""

    type: Literal["redacted_thinking"] = "redacted_thinking"
    data: str
    visibility: Visibility | None = None


@model
class ToolCallBlock(OpenModel):
    """The model calls a tool."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: dict[str, Any]
    visibility: Visibility | None = None


@model
class ToolResultBlock(OpenModel):
    """The result of the tool call with this id."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    output: Any
    visibility: Visibility | None = None


@model
class ImageBlock(OpenModel):
    """A picture; `source` has its address, or holds it as base64."""

    type: Literal["image"] = "image"
    source: dict[str, Any]
    visibility: Visibility | None = None


@model
class ReasoningBlock(OpenModel):
    """Reasoning in the form of OpenAI's Responses API: full content and a summary, both lists of parts."""

    type: Literal["reasoning"] = "reasoning"
    content: list[Any]
    summary: list[Any]
    visibility: Visibility | None = None


@model
class UnknownBlock(OpenModel):
    """A block of an unknown type; everything besides the type is in `extra`."""

    type: str
    _type_position: int = attrs.field(default=0, init=False, eq=False, repr=False)

    @property
    def visibility(self) -> Any:
        """The block's visibility, if it has one; unchecked, unlike the other blocks'."""
        return self.extra.get("visibility")

    def _fill(self, members: Mapping[str, Any], *, warns: bool = False) -> None:
        super()._fill(members, warns=warns)
        self._type_position = list(members).index("type")

    def _in_order(self, members: dict[str, Any]) -> dict[str, Any]:
        if not self._type_position:
            return members
        names = [name for name in members if name != "type"]
        names.insert(self._type_position, "type")
        return {name: members[name] for name in names}


ContentBlockUnion: TypeAlias = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolCallBlock
    | ToolResultBlock
    | ImageBlock
    | ReasoningBlock
    | UnknownBlock
)
"""Any content block, distinguished by `type`."""


def is_base64(data: object) -> bool:
    """Whether it is the standard base64 of something, with padding: no other characters, no stray bits in the last one."""
    try:
        return bool(data) and isinstance(data, str) and base64.b64encode(base64.b64decode(data)) == data.encode("ascii")
    except ValueError:
        return False


# ── messages ──────────────────────────────────────────────────────────────────────────────────────


Role: TypeAlias = Literal["system", "developer", "user", "assistant", "function", "tool"]
"""Who wrote a message."""


@model
class Message(OpenModel):
    """One message: text, or a list of blocks.

    Attributes:
        role: Who wrote it.
        content: The text or the blocks.
        name: The author, where several share a role.
        tool_call_id: For a tool's result, the call it belongs to.
        metadata: For the application; not for the model.
    """

    role: Role
    content: str | list[ContentBlockUnion]
    name: str | None = None
    tool_call_id: str | None = None
    metadata: dict[str, Any] | None = None


@model
class ToolSpec(OpenModel):
    """A tool as it is described to the model; `parameters` is a JSON Schema."""

    name: str
    parameters: dict[str, Any]
    description: str | None = None


@model
class ToolCall(OpenModel):
    """A call the model made, as the orchestrator handles it.

    Attributes:
        id: What the result refers to; unique in its conversation.
        name: The tool.
        arguments: What the model wrote, not checked yet.
    """

    id: str
    name: str
    arguments: dict[str, Any]


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


@model
class ResponseFormatText(Model):
    """The response is free text."""

    type: Literal["text"] = "text"


@model
class ResponseFormatJson(Model):
    """The response is JSON of any form."""

    type: Literal["json"] = "json"


@model
class ResponseFormatJsonSchema(Model):
    """The response is JSON that conforms to a schema."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any]
    strict: bool | None = None


ResponseFormat: TypeAlias = ResponseFormatText | ResponseFormatJson | ResponseFormatJsonSchema
"""Any response format, distinguished by `type`."""


@model
class ChatRequest(OpenModel):
    """A request to a language model, independent of providers. What is None is left to the provider.

    Attributes:
        messages: The conversation, oldest first.
        tools: The tools the model may call.
        response_format: The form of the response.
        max_output_tokens: The limit of the response.
        conversation_id: For providers that keep conversations.
        stream: Whether the response is wanted in chunks; providers that can stream have a method for it as well.
        metadata: For the provider or the application; not for the model.
        model: Which model; else the provider's default.
        tool_choice: ``"auto"``, ``"none"``, ``"required"``, or which tool, as the provider understands it.
        stop: Texts at which the response ends.
        reasoning_effort: How much to reason, such as ``"low"`` or ``"high"``.
        timeout: Seconds for the call.
    """

    messages: list[Message]
    tools: list[ToolSpec] | None = None
    response_format: ResponseFormat | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    conversation_id: str | None = None
    stream: bool | None = False
    metadata: dict[str, Any] | None = None
    model: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    stop: list[str] | None = None
    reasoning_effort: str | None = None
    timeout: float | None = None


@model
class Usage(OpenModel):
    """What a response consumed.

    Attributes:
        input_tokens: Tokens of the request, those read from a cache included.
        reasoning_tokens: Tokens of reasoning, which are among the output tokens.
        cost_usd: The price as a Decimal; None if it is not known. Floats are refused.
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    reasoning_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Decimal | None = None


@model
class Degradation(OpenModel):
    """The provider delivered less than was requested.

    Attributes:
        requested: What was requested.
        actual: What was delivered.
        reason: Why.
    """

    requested: str
    actual: str
    reason: str


@model
class ChatResponse(OpenModel):
    """A language model's response.

    Attributes:
        content: The response in blocks, tool calls among them.
        tool_calls: The tool calls again, as an orchestrator handles them.
        usage: What it consumed, if the provider reports it.
        degradation: What could not be done as requested.
        finish_reason: Why it ended, in the provider's word.
        metadata: For the application; not for the model.
    """

    content: list[ContentBlockUnion]
    tool_calls: list[ToolCall] | None = None
    usage: Usage | None = None
    degradation: Degradation | None = None
    finish_reason: str | None = None
    metadata: dict[str, Any] | None = None


# ── streams ──────────────────────────────────────────────────────────────────────────────────────

StreamKind: TypeAlias = Literal["block_start", "block_delta", "block_end", "response"]
"""What a chunk is about; ``response`` is always the last one."""


@model
class StreamChunk(Model):
    """One chunk of a streamed response.

    Attributes:
        kind: What it is about.
        index: The index of the content block.
        block_type: The block's type, at its start and with its deltas.
        tool_name: At the start of a tool call, the tool, if its name has arrived.
        text: New text of the block, for deltas; arguments of a tool call arrive as JSON text.
        block: The finished block, at its end.
        response: The whole response, in the last chunk.
    """

    kind: StreamKind
    index: int = 0
    block_type: str | None = None
    tool_name: str | None = None
    text: str | None = None
    block: ContentBlockUnion | None = None
    response: ChatResponse | None = None
