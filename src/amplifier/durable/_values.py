"""What is known of turns and schedules: the values that engines return and store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import attrs

from amplifier.live import Question

TurnState: TypeAlias = Literal["queued", "running", "held", "completed", "failed", "stopped"]
"""What a turn does: the first three are open, the others final. A ``held`` turn waits for a worker with its plan, or for `DurableEngine.resume`."""

BLOCKS = "\x1eblocks:"
"""Begins a stored prompt that is JSON: a list of blocks, a text that begins like this, or an object with the prompt and the schema of its answer."""


@attrs.frozen(kw_only=True)
class TurnStatus:
    """A turn at one moment.

    Attributes:
        turn_id: The turn.
        session_id: Its session.
        state: What it does.
        attempt: How often a worker has begun it or gone on with it.
        takeovers: How many workers have died while they ran it, so that another one took it over.
        started: When it was handed over with `DurableEngine.start`, in seconds since 1970.
        ended: When it ended; None while it is open.
        worker: Who runs it, or ran it last.
        answer: The text of a completed turn; of one that was stopped gracefully, the text so far.
        error_type: The class of the error that it failed with or is held for.
        error: Its message.
        questions: What waits for an answer; empty in `DurableEngine.list`.
    """

    turn_id: str
    session_id: str
    state: TurnState
    attempt: int
    takeovers: int = 0
    started: float = 0.0
    ended: float | None = None
    worker: str | None = None
    answer: str | None = None
    error_type: str | None = None
    error: str | None = None
    questions: tuple[Question, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state in ("completed", "failed", "stopped")


@attrs.frozen(kw_only=True)
class TurnCounts:
    """The turns of an engine at one moment.

    Attributes:
        states: How many there are in each state.
        oldest: Seconds for which the oldest open turn has been open; 0 if there is none.
        attempts: Of the open turns together.
        takeovers: Of the open turns together.
    """

    states: Mapping[TurnState, int]
    oldest: float = 0.0
    attempts: int = 0
    takeovers: int = 0


@attrs.frozen(kw_only=True)
class WatchedEvent:
    """An event of a turn as a watcher sees it.

    Attributes:
        position: Counted from 1 over all attempts; `DurableEngine.watch` goes on after one.
        attempt: The attempt that emitted it. Events of an attempt that was killed may be missing, and come again in the next.
        name: The event.
        data: Its payload as JSON, without secrets; of a very large one only the plain values.
    """

    position: int
    attempt: int
    name: str
    data: dict[str, Any]


@attrs.frozen(kw_only=True)
class TurnPolicy:
    """How a turn is to be run; moments are in seconds since 1970."""

    priority: int = 3
    due_at: float | None = None
    deadline_at: float | None = None
    notify: str | None = None


@attrs.frozen(kw_only=True)
class Schedule:
    """Starts turns of a session again and again, see `DurableEngine.schedule`.

    Attributes:
        name: Its own.
        session_id: The session.
        prompt: Of each turn, as the engine stores it: one in blocks is JSON.
        every: Seconds from one turn to the next.
        next_at: When the next one is due, in seconds since 1970.
    """

    name: str
    session_id: str
    prompt: str
    every: int
    next_at: float

    @property
    def turn_id(self) -> str:
        """Of the next turn: the name and the date."""
        return f"{self.name}-{datetime.fromtimestamp(self.next_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
