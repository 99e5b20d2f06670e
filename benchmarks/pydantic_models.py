"""The messages of `amplifier.models` as pydantic 2 declares them: the same fields, the same rules for unknown members."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Visibility = Literal["internal", "developer", "user"]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Text(Open):
    type: Literal["text"] = "text"
    text: str
    visibility: Visibility | None = None


class Thinking(Open):
    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str | None = None
    visibility: Visibility | None = None
    content: list[Any] | None = None


class ToolCallPart(Open):
    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: dict[str, Any]
    visibility: Visibility | None = None


class ToolResultPart(Open):
    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    output: Any
    visibility: Visibility | None = None


class Image(Open):
    type: Literal["image"] = "image"
    source: dict[str, Any]
    visibility: Visibility | None = None


Block = Annotated[
    Text | Thinking | ToolCallPart | ToolResultPart | Image, Field(discriminator="type")
]


class Message(Open):
    role: Literal["system", "developer", "user", "assistant", "function", "tool"]
    content: str | list[Block]
    name: str | None = None
    tool_call_id: str | None = None
    metadata: dict[str, Any] | None = None


class Tool(Open):
    name: str
    parameters: dict[str, Any]
    description: str | None = None


class Request(Open):
    messages: list[Message]
    tools: list[Tool] | None = None
    response_format: dict[str, Any] | None = None
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
