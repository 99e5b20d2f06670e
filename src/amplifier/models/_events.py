"""The events of a running turn, and the content blocks in the events of a streamed answer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from amplifier._internal.json import JSON

from .base import Model, model

# ── events of a turn ─────────────────────────────────────────────────────────────────────────────


@model
class TurnEvent(Model):
    """Any event of the turn, from ``session.stream``.

    Attributes:
        name: Name of the event in the catalogue.
        data: The whole payload of the event.
    """

    name: str
    data: dict[str, JSON]


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
    """New text of a typed answer, with the answer so far.

    Attributes:
        value: The answer so far as JSON values. Members that have not arrived are missing, and a
            text may be incomplete.
    """

    value: JSON


@model
class AnswerReset(TurnEvent):
    """The text streamed for the current answer is void.

    The stream broke, and the answer starts over.

    Attributes:
        text: The text that is void.
    """

    text: str


@model
class ToolStarted(TurnEvent):
    """A tool call is about to run."""

    tool_name: str
    tool_call_id: str
    tool_input: dict[str, JSON]


@model
class ToolFinished(TurnEvent):
    """A tool call has its result. Every call has exactly one such event."""

    tool_name: str
    tool_call_id: str
    success: bool


SUB_AGENT_EVENT = "task:agent_event"
"""Name of the event that carries an event of a sub-agent in the stream of its parent."""


@model
class SubAgentEvent(TurnEvent):
    """An event of a sub-agent, in the stream of the turn that it works for.

    Attributes:
        agent: Name of the sub-agent.
        session_id: Id of the sub-agent's session.
        event: The event as in the stream of the sub-agent. An event of one of its own sub-agents is
            another `SubAgentEvent`.
    """

    agent: str
    session_id: str
    event: TurnEvent

    @property
    def path(self) -> tuple[str, ...]:
        """Names of the sub-agents from the outermost one to the origin of the event."""
        return (self.agent, *(self.event.path if isinstance(self.event, SubAgentEvent) else ()))


# ── streamed content ─────────────────────────────────────────────────────────────────────────────
# These are standard dataclasses, unlike the models of this package, because published modules put
# them into fields and events unchanged. They are not part of a transcript. `_messages` has the
# blocks of a transcript.


# This isn't a StrEnum, which would change str() of the members for modules.
class ContentBlockType(str, Enum):  # noqa: UP042
    """The kinds of streamed content."""

    TEXT = "text"
    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


@dataclass
class ContentBlock:
    """Base of streamed content.

    Attributes:
        raw: The block as the provider sent it. It is never written.
    """

    type: ContentBlockType
    raw: dict[str, JSON] | None = None

    def to_dict(self) -> dict[str, JSON]:
        """Return the content for an event payload."""
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
    """A call to a tool."""

    type: ContentBlockType = ContentBlockType.TOOL_CALL
    id: str = ""
    name: str = ""
    arguments: dict[str, JSON] | None = None


@dataclass
class ToolResultContent(ContentBlock):
    """A tool's result.

    Attributes:
        error: Message of a failure. None or an empty one is not written.
    """

    type: ContentBlockType = ContentBlockType.TOOL_RESULT
    tool_call_id: str = ""
    output: JSON = None
    error: str | None = None

    def to_dict(self) -> dict[str, JSON]:
        """Return the content for an event payload."""
        content = super().to_dict()
        if not self.error:
            del content["error"]
        return content
