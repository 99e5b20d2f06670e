"""What turns need of their engine: where an attempt records what happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ._engine import Question
from ._turn_rows import ClaimedTurn, Outcome, StepName, StopRequest


class AttemptStore(Protocol):
    """Records one attempt of a turn.

    Every method raises `TurnLost` when another worker has the turn, and `EngineUnavailableError` when nothing could be recorded.
    """

    async def note_plan(self, turn: ClaimedTurn, plan: Mapping[str, str]) -> None:
        """Record the plan that a turn begins with."""
        ...

    async def begin_step(self, turn: ClaimedTurn, step: StepName) -> StopRequest | None:
        """Record that a tool call begins now; not if an immediate stop is stored. Returns the stop."""
        ...

    async def finish_step(self, turn: ClaimedTurn, step: StepName, result: str) -> StopRequest | None:
        """Record the result of a step, which may never have begun: a hook may have denied the call. Returns a stop, if known."""
        ...

    async def ask(self, turn: ClaimedTurn, question: Question) -> str | None:
        """Store a question, if it is not there; returns the answer, if that is."""
        ...

    async def withdraw(self, turn: ClaimedTurn, question_id: str) -> None:
        """Remove a question that no one waits for any more, unless it was answered."""
        ...

    async def add_events(self, turn: ClaimedTurn, last_position: int, events: list[tuple[str, Any]]) -> None:
        """Store events for watchers; the last one has this position."""
        ...

    async def finish(
        self, turn: ClaimedTurn, outcome: Outcome, last_position: int, events: list[tuple[str, Any]]
    ) -> None:
        """End a turn, or hold it: its outcome, the conversation and the last events at once."""
        ...
