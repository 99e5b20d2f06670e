"""Content blocks of messages and responses.

All of them keep unknown members in `extra`. A block of an unknown type becomes an `UnknownBlock` and is
written back exactly as it came, so that a newer provider and an older kernel get along.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

from ._base import OpenModel, model

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
