"""A message of a conversation, the tools a model is offered and the calls it makes."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from amplifier.models._definition.base import OpenModel
from amplifier.models._definition.decorator import model

from ._content import ContentBlockUnion

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "function", "tool"]
"""Who speaks."""


@model
class Message(OpenModel):
    """One message: text, or a list of blocks.

    Attributes:
        role: Who speaks.
        content: What is said.
        name: Who exactly, where several speak in one role.
        tool_call_id: For a tool's answer, the call it answers.
        metadata: For whoever stores or shows it; not for the model.
    """

    role: Role
    content: str | list[ContentBlockUnion]
    name: str | None = None
    tool_call_id: str | None = None
    metadata: dict[str, Any] | None = None


@model
class ToolSpec(OpenModel):
    """A tool as the model is told about it; `parameters` is a JSON Schema."""

    name: str
    parameters: dict[str, Any]
    description: str | None = None


@model
class ToolCall(OpenModel):
    """A call the model made, as the orchestrator handles it.

    Attributes:
        id: What the result refers to; unique in its conversation.
        name: The tool.
        arguments: What the model wrote, checked by nobody yet.
    """

    id: str
    name: str
    arguments: dict[str, Any]
