"""Content blocks, messages, tools, and the requests to a language model with its responses."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import attrs

from amplifier._internal.json import JSON

from .base import Model, OpenModel, model

# ── content blocks ───────────────────────────────────────────────────────────────────────────────
# A block keeps unknown members in `extra`. A block of an unknown type becomes an `UnknownBlock` and
# is written exactly as it was read, so that a newer provider works with an older kernel.

Visibility: TypeAlias = Literal["internal", "developer", "user"]
"""The audience of a block. None leaves it to the application."""


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
        signature: The provider's signature of the reasoning. The provider refuses the block if it
            does not come back unchanged.
    """

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str | None = None
    visibility: Visibility | None = None
    content: list[JSON] | None = None


@model
class RedactedThinkingBlock(OpenModel):
    """Reasoning that the provider encrypts.

    Attributes:
        data: Opaque text that must come back unchanged.
    """

    type: Literal["redacted_thinking"] = "redacted_thinking"
    data: str
    visibility: Visibility | None = None


@model
class ToolCallBlock(OpenModel):
    """A call to a tool by the model."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: dict[str, JSON]
    visibility: Visibility | None = None


@model
class ToolResultBlock(OpenModel):
    """The result of the tool call with this id."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    output: JSON
    visibility: Visibility | None = None


@model
class ImageBlock(OpenModel):
    """An image.

    Attributes:
        source: Address of the image, or its content in base64.
    """

    type: Literal["image"] = "image"
    source: dict[str, JSON]
    visibility: Visibility | None = None


@model
class ReasoningBlock(OpenModel):
    """Reasoning in the form of OpenAI's Responses API.

    Attributes:
        content: Parts of the full reasoning.
        summary: Parts of the summary.
    """

    type: Literal["reasoning"] = "reasoning"
    content: list[JSON]
    summary: list[JSON]
    visibility: Visibility | None = None


@model
class UnknownBlock(OpenModel):
    """A block of an unknown type. Its other members are in `extra`."""

    type: str
    _type_position: int = attrs.field(default=0, init=False, eq=False, repr=False)

    @property
    def visibility(self) -> Any:
        """Visibility of the block as it was read, unchecked, or None."""
        return self.extra.get("visibility")

    def _fill(self, members: Mapping[str, object], *, warn: bool = False) -> None:
        super()._fill(members, warn=warn)
        self._type_position = list(members).index("type")

    def _in_order(self, members: dict[str, JSON]) -> dict[str, JSON]:
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
"""Any content block. The field `type` distinguishes them."""


def is_base64(data: object) -> bool:
    """Return True for non-empty text in standard base64 with padding.

    Other characters and stray bits in the last one make it False.
    """
    if not isinstance(data, str) or not data:
        return False
    try:
        return base64.b64encode(base64.b64decode(data)) == data.encode("ascii")
    except ValueError:
        return False


# ── messages ──────────────────────────────────────────────────────────────────────────────────────


Role: TypeAlias = Literal["system", "developer", "user", "assistant", "function", "tool"]
"""The author of a message."""


@model
class Message(OpenModel):
    """One message of a conversation.

    Attributes:
        role: Author of the message.
        content: Text, or content blocks.
        name: Name of the author where several share a role.
        tool_call_id: Id of the tool call that the message is the result of, or None.
        metadata: Data of the application. The model does not get it.
    """

    role: Role
    content: str | list[ContentBlockUnion]
    name: str | None = None
    tool_call_id: str | None = None
    metadata: dict[str, JSON] | None = None


@model
class ToolSpec(OpenModel):
    """The description of a tool for the model.

    Attributes:
        parameters: JSON Schema of the arguments.
    """

    name: str
    parameters: dict[str, JSON]
    description: str | None = None


@model
class ToolCall(OpenModel):
    """A tool call by the model, as the orchestrator handles it.

    Attributes:
        id: Id of the call, which its result refers to. It is unique in the conversation.
        name: Name of the tool.
        arguments: Arguments as the model wrote them, unchecked.
    """

    id: str
    name: str
    arguments: dict[str, JSON]


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
    json_schema: dict[str, JSON]
    strict: bool | None = None


ResponseFormat: TypeAlias = ResponseFormatText | ResponseFormatJson | ResponseFormatJsonSchema
"""Any response format. The field `type` distinguishes them."""


@model
class ChatRequest(OpenModel):
    """A request to a language model, independent of providers.

    None leaves a setting to the provider.

    Attributes:
        messages: Messages of the conversation, oldest first.
        tools: Tools that the model may call.
        response_format: Form of the response.
        max_output_tokens: Maximum number of tokens of the response.
        conversation_id: Id of the conversation, for providers that keep conversations.
        stream: True requests the response in chunks. Providers that can stream also have a method
            for it.
        metadata: Data of the provider or the application. The model does not get it.
        model: Name of the model. None means the provider's default.
        tool_choice: ``"auto"``, ``"none"``, ``"required"``, or a tool in the provider's own form.
        stop: Texts at which the response ends.
        reasoning_effort: Amount of reasoning, such as ``"low"`` or ``"high"``.
        timeout: Seconds until the call fails.
    """

    messages: list[Message]
    tools: list[ToolSpec] | None = None
    response_format: ResponseFormat | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    conversation_id: str | None = None
    stream: bool | None = False
    metadata: dict[str, JSON] | None = None
    model: str | None = None
    tool_choice: str | dict[str, JSON] | None = None
    stop: list[str] | None = None
    reasoning_effort: str | None = None
    timeout: float | None = None


@model
class Usage(OpenModel):
    """The tokens and the cost of a response.

    Attributes:
        input_tokens: Tokens of the request, including tokens read from a cache.
        reasoning_tokens: Tokens of reasoning, which `output_tokens` includes.
        cost_usd: Price as a Decimal, or None if it is unknown. A float is refused.
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
        requested: The requested setting.
        actual: The delivered setting.
        reason: Reason for the difference.
    """

    requested: str
    actual: str
    reason: str


@model
class ChatResponse(OpenModel):
    """A language model's response.

    Attributes:
        content: Blocks of the response, including tool calls.
        tool_calls: The tool calls in `content`, as an orchestrator handles them.
        usage: Tokens and cost, if the provider reports them.
        degradation: A difference from the request, or None.
        finish_reason: Reason for the end of the response, in the provider's word.
        metadata: Data of the application. The model does not get it.
    """

    content: list[ContentBlockUnion]
    tool_calls: list[ToolCall] | None = None
    usage: Usage | None = None
    degradation: Degradation | None = None
    finish_reason: str | None = None
    metadata: dict[str, JSON] | None = None


# ── streams ──────────────────────────────────────────────────────────────────────────────────────

StreamKind: TypeAlias = Literal["block_start", "block_delta", "block_end", "response"]
"""The kind of a chunk. ``response`` is always the last one."""


@model
class StreamChunk(Model):
    """One chunk of a streamed response.

    Attributes:
        kind: Kind of the chunk.
        index: Index of the content block.
        block_type: Type of the block, at its start and with its deltas.
        tool_name: Name of the tool at the start of a tool call, if it has arrived.
        text: New text of the block, for deltas. Arguments of a tool call arrive as JSON text.
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
