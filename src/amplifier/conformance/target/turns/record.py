"""The log of a scripted turn, in one order over all doubles, and helpers to read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from amplifier._json import copy_json
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.turns.script import Answer, Call, ScriptedTurn
from amplifier.models import Model, to_dict


@attrs.frozen
class LogEntry:
    """One entry of the log.

    Attributes:
        kind: ``event``, ``view``, ``storing``, ``stored``, ``asked``, ``answered``, ``failed``, ``started``, ``returned``, ``raised``,
            ``interrupted``, ``verdict``, ``approval`` or ``stop``.
        name: The event, the tool, the provider or the role.
        data: A copy of the details.
    """

    kind: str
    name: str
    data: Any = None


@attrs.define
class RecordedTurn:
    """One turn and its log.

    Attributes:
        script: The script of the turn.
        log: All entries, in order.
        outcome: How execute ended; None while it runs.
        is_cancelled: The check cancelled it.
        context_failed: The context failed as scripted.
        is_limited: Its model never stops, so that the loop has to.
    """

    script: ScriptedTurn
    log: list[LogEntry] = attrs.field(factory=list)
    outcome: Outcome | None = None
    is_cancelled: bool = False
    context_failed: bool = False
    is_limited: bool = False

    def entries(self, kind: str, name: str | None = None) -> list[tuple[int, LogEntry]]:
        """The entries of one kind with their positions."""
        return [
            (index, each)
            for index, each in enumerate(self.log)
            if each.kind == kind and (name is None or each.name == name)
        ]

    def positions(self, kind: str, name: str | None = None) -> list[int]:
        """The positions of the entries of one kind."""
        return [index for index, _ in self.entries(kind, name)]

    @property
    def events(self) -> list[tuple[int, LogEntry]]:
        """The events of the turn."""
        return self.entries("event")

    @property
    def was_stopped(self) -> bool:
        """A graceful stop was asked for."""
        return bool(self.positions("stop"))

    @property
    def was_denied(self) -> bool:
        """A hook denied the turn or one of its model calls."""
        return any(each.data["action"] == "deny" and each.name in _TURN_GATES for _, each in self.entries("verdict"))

    @property
    def has_failed(self) -> bool:
        """Provider or context failed on purpose."""
        return bool(self.positions("failed")) or self.context_failed

    @property
    def went_through(self) -> bool:
        """Nothing ended the turn early."""
        return not (
            self.is_cancelled or self.was_stopped or self.was_denied or self.has_failed or self.broke_on_odd_result
        )

    @property
    def broke_on_odd_result(self) -> bool:
        """It raised after a tool had returned something else than a ToolResult, which is as much the tool's fault."""
        odd = any(each.data["call"] is not None and each.data["call"].is_odd for _, each in self.entries("returned"))
        return odd and self.outcome is not None and self.outcome.kind == "raised"

    @property
    def answers(self) -> list[tuple[int, Answer]]:
        """The answers of the model, with their positions."""
        return [(index, each.data) for index, each in self.entries("answered")]

    @property
    def calls(self) -> list[Call]:
        """The tool calls in the answers of the model."""
        return [call for _, answer in self.answers for call in answer.calls]

    @property
    def stored_results(self) -> list[tuple[int, str, Any]]:
        """The stored tool results: position, call id and result."""
        return [(at, *found) for at, each in self.entries("stored") for found in results_in(each.data)]

    def next_asked(self, position: int) -> int | None:
        """The position of the next model call after a position."""
        return next((index for index in self.positions("asked") if index > position), None)


_TURN_GATES = ("prompt:submit", "provider:request")


# ── reading JSON ──


def plain(value: Any) -> Any:
    """A copy of a value with models converted to JSON; other values stay as they are."""
    if isinstance(value, Model):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in value]
    return copy_json(value)


def words_of(value: Any) -> str:
    """All text in a value, joined, to search marks in."""
    return "\n".join(_strings(value))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield str(key)
            yield from _strings(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _strings(member)
    elif value is not None:
        yield json.dumps(value, default=str)


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or the text blocks of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(each["text"]) for each in content if isinstance(each, Mapping) and "text" in each)
    return "" if content is None else words_of(content)


def results_in(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The tool results in a stored message: pairs of call id and result.

    One message for each result, or blocks of type ``tool_result`` in any message.
    """
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    found = [
        (str(block.get("tool_call_id") or block.get("tool_use_id") or ""), block)
        for block in blocks
        if isinstance(block, Mapping) and block.get("type") == "tool_result"
    ]
    if found:
        return found
    if message.get("role") in ("tool", "function"):
        return [(str(message.get("tool_call_id") or ""), content)]
    return []
