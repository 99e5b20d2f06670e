"""The events of a running turn for an embedder: ``async for event in events`` inside ``session.stream``."""

from __future__ import annotations

from typing import Any

from amplifier.models._definition.base import Model
from amplifier.models._definition.decorator import model


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
