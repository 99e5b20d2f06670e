"""Content as it travels in events while an answer is streamed.

These are standard dataclasses, unlike the models of this package, because published modules put them into fields and
events as they are. They are not part of a transcript; `_content` has the blocks that are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class ContentBlockType(str, Enum):  # noqa: UP042  # StrEnum would change str() of the members, which modules see
    """The kinds of streamed content."""

    TEXT = "text"
    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


@dataclass
class ContentBlock:
    """Base of streamed content; `raw` is what the provider sent and is never written out."""

    type: ContentBlockType
    raw: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content for an event payload."""
        return {"type": self.type.value}


@dataclass
class TextContent(ContentBlock):
    """Text."""

    type: ContentBlockType = ContentBlockType.TEXT
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The content for an event payload."""
        return {**super().to_dict(), "text": self.text}


@dataclass
class ThinkingContent(ContentBlock):
    """Reasoning."""

    type: ContentBlockType = ContentBlockType.THINKING
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The content for an event payload."""
        return {**super().to_dict(), "text": self.text}


@dataclass
class ToolCallContent(ContentBlock):
    """A call of a tool."""

    type: ContentBlockType = ContentBlockType.TOOL_CALL
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content for an event payload."""
        return {**super().to_dict(), "id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass
class ToolResultContent(ContentBlock):
    """A tool's result; `error` is written only if there is one."""

    type: ContentBlockType = ContentBlockType.TOOL_RESULT
    tool_call_id: str = ""
    output: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content for an event payload."""
        shown = {**super().to_dict(), "tool_call_id": self.tool_call_id, "output": self.output}
        return {**shown, "error": self.error} if self.error else shown
