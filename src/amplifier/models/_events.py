"""The events of a running turn for an embedder, and content as it travels in events while an answer is streamed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ._base import Model, model

# ── turns: ``async for event in events`` inside ``session.stream`` ───────────────────────────────


@model
class TurnEvent(Model):
    """Any event of the turn.

    Attributes:
        name: The event's name in the catalogue.
        data: Its whole payload.
    """

    name: str
    data: dict[str, Any]


@model
class TextDelta(TurnEvent):
    """New text of the response."""

    text: str


@model
class ThinkingDelta(TurnEvent):
    """New text of the model's reasoning."""

    text: str


@model
class ResultDelta(TextDelta):
    """New text of a typed answer, with what the answer is so far.

    Attributes:
        value: What has arrived so far, as JSON values; members that have not arrived are missing, and texts may be cut off.
    """

    value: Any


@model
class AnswerReset(TurnEvent):
    """This text of the present answer is void, and all that was streamed of it: it was cut, and comes differently the second time."""

    text: str


@model
class ToolStarted(TurnEvent):
    """A tool call is about to run."""

    tool_name: str
    tool_call_id: str
    tool_input: dict[str, Any]


@model
class ToolFinished(TurnEvent):
    """A tool call has its result; exactly one comes for every call."""

    tool_name: str
    tool_call_id: str
    success: bool


SUB_AGENT_EVENT = "task:agent_event"
"""The event of the parent that passes on one of a sub-agent."""


@model
class SubAgentEvent(TurnEvent):
    """An event of a sub-agent, in the stream of the turn that it works for.

    Attributes:
        agent: Its name.
        session_id: Of its session.
        event: The event as the sub-agent's own stream would have it; of its own sub-agents another `SubAgentEvent`.
    """

    agent: str
    session_id: str
    event: TurnEvent

    @property
    def path(self) -> tuple[str, ...]:
        """The names from the outermost sub-agent to the one whose event it is."""
        return (self.agent, *(self.event.path if isinstance(self.event, SubAgentEvent) else ()))


# ── streamed content ─────────────────────────────────────────────────────────────────────────────
# Standard dataclasses, unlike the models of this package, because published modules put them into fields and events as they
# are. They are not part of a transcript; `_messages` has the blocks that are.


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
        names = [field.name for field in fields(self) if field.name not in ("type", "raw")]
        return {"type": self.type.value, **{name: getattr(self, name) for name in names}}


@dataclass
class TextContent(ContentBlock):
    """Text."""

    type: ContentBlockType = ContentBlockType.TEXT
    text: str = ""


@dataclass
class ThinkingContent(ContentBlock):
    """Reasoning."""

    type: ContentBlockType = ContentBlockType.THINKING
    text: str = ""


@dataclass
class ToolCallContent(ContentBlock):
    """A call of a tool."""

    type: ContentBlockType = ContentBlockType.TOOL_CALL
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None


@dataclass
class ToolResultContent(ContentBlock):
    """A tool's result; `error` is written only if there is one."""

    type: ContentBlockType = ContentBlockType.TOOL_RESULT
    tool_call_id: str = ""
    output: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content for an event payload."""
        shown = super().to_dict()
        if not self.error:
            del shown["error"]
        return shown
