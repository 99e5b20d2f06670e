"""What goes to a language model and what comes back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, TypeAlias

from amplifier.models._definition.base import Model, OpenModel
from amplifier.models._definition.decorator import model

from ._content import ContentBlockUnion
from ._messages import Message, ToolCall, ToolSpec


@model
class ResponseFormatText(Model):
    """The answer is free text."""

    type: Literal["text"] = "text"


@model
class ResponseFormatJson(Model):
    """The answer is JSON of any form."""

    type: Literal["json"] = "json"


@model
class ResponseFormatJsonSchema(Model):
    """The answer is JSON that keeps a schema."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any]
    strict: bool | None = None


ResponseFormat: TypeAlias = ResponseFormatText | ResponseFormatJson | ResponseFormatJsonSchema
"""Any response format, told apart by `type`."""


@model
class ChatRequest(OpenModel):
    """A request to a language model, in no provider's dialect. What is None is left to the provider.

    Attributes:
        messages: The conversation, oldest first.
        tools: What the model may call.
        response_format: What form the answer should have.
        max_output_tokens: The longest answer.
        conversation_id: For providers that keep conversations.
        stream: Whether the answer is wanted in pieces; providers that can stream have a method for it as well.
        metadata: For the provider or the application; not for the model.
        model: Which model; else the provider's default.
        tool_choice: ``"auto"``, ``"none"``, ``"required"``, or which tool, as the provider understands it.
        stop: Texts at which the answer ends.
        reasoning_effort: How long to think, such as ``"low"`` or ``"high"``.
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
    """What an answer consumed.

    Attributes:
        input_tokens: Tokens of the request, those read from a cache included.
        reasoning_tokens: Tokens of thinking, which are among the output tokens.
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
    """The provider gave less than was asked for, and says why.

    Attributes:
        requested: What was asked for.
        actual: What was given.
        reason: Why.
    """

    requested: str
    actual: str
    reason: str


@model
class ChatResponse(OpenModel):
    """A language model's answer.

    Attributes:
        content: The answer in blocks, tool calls among them.
        tool_calls: The tool calls once more, as a loop handles them.
        usage: What it consumed, if the provider tells.
        degradation: What could not be done as asked.
        finish_reason: Why it ended, in the provider's word.
        metadata: For whoever looks; not for the model.
    """

    content: list[ContentBlockUnion]
    tool_calls: list[ToolCall] | None = None
    usage: Usage | None = None
    degradation: Degradation | None = None
    finish_reason: str | None = None
    metadata: dict[str, Any] | None = None
