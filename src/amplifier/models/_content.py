"""Content blocks: what a message or an answer is made of.

All of them keep unknown members in `extra`. A block whose type nobody here knows becomes an `UnknownBlock` and is
written back exactly as it came, so that a newer provider and an older kernel get along.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import attrs

from amplifier.models._definition.base import OpenModel
from amplifier.models._definition.decorator import model

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
    """What the model thought before it answered.

    Attributes:
        signature: The provider's seal over the thought; it must come back unchanged or the provider refuses it.
    """

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str | None = None
    visibility: Visibility | None = None
    content: list[Any] | None = None


@model
class RedactedThinkingBlock(OpenModel):
    """A thought the provider keeps to itself, as an opaque text that must come back unchanged."""

    type: Literal["redacted_thinking"] = "redacted_thinking"
    data: str
    visibility: Visibility | None = None


@model
class ToolCallBlock(OpenModel):
    """The model asks for a tool."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: dict[str, Any]
    visibility: Visibility | None = None


@model
class ToolResultBlock(OpenModel):
    """What a tool answered to the call with this id."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    output: Any
    visibility: Visibility | None = None


@model
class ImageBlock(OpenModel):
    """A picture; `source` says where it is, or holds it as base64."""

    type: Literal["image"] = "image"
    source: dict[str, Any]
    visibility: Visibility | None = None


@model
class ReasoningBlock(OpenModel):
    """A thought in the form of OpenAI's responses: full content and a summary, both lists of parts."""

    type: Literal["reasoning"] = "reasoning"
    content: list[Any]
    summary: list[Any]
    visibility: Visibility | None = None


@model
class UnknownBlock(OpenModel):
    """A block of a type nobody here knows; everything besides the type is in `extra`."""

    __remembers_order__ = True

    type: str
    _type_position: int = attrs.field(default=0, init=False, eq=False)

    @property
    def visibility(self) -> Any:
        """What the block says about its visibility, if anything; unchecked, unlike the other blocks'."""
        return self.extra.get("visibility")

    def _remember_order(self, names: Iterable[str]) -> None:
        self._type_position = list(names).index("type")

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
"""Any content block, told apart by `type`."""
