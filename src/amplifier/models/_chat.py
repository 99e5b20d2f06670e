"""What goes to a language model and what comes back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, TypeAlias

from ._base import Model, OpenModel, model
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
    """A request to a language model, in no provider's dialect."""

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
    """The provider gave less than was asked for, and says why."""

    requested: str
    actual: str
    reason: str


@model
class ChatResponse(OpenModel):
    """A language model's answer."""

    content: list[ContentBlockUnion]
    tool_calls: list[ToolCall] | None = None
    usage: Usage | None = None
    degradation: Degradation | None = None
    finish_reason: str | None = None
    metadata: dict[str, Any] | None = None
