"""A message of a conversation, the tools a model is offered and the calls it makes."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from amplifier.models._definition.base import OpenModel
from amplifier.models._definition.decorator import model

from ._content import ContentBlockUnion

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
