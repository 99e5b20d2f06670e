"""What turns need of their engine: what clients ask it, and where an attempt records what happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from amplifier.contracts import Step

from ._engine import Question, TurnStatus, WatchedEvent
from ._turn_rows import ClaimedTurn, Outcome, StopRequest


class ClientStore(Protocol):
    """Where clients find turns; errors as in `DurableEngine`."""

    async def start(self, session_id: str, prompt: str, turn_id: str | None) -> str:
        """Store a turn and make it ready for a worker."""
        ...

    async def status(self, turn_id: str) -> TurnStatus:
        """What a turn does now."""
        ...

    async def events_after(self, turn_id: str, position: int) -> tuple[list[WatchedEvent], TurnStatus]:
        """Events behind a position, and what the turn did when there were no more."""
        ...

    async def answer(self, turn_id: str, question_id: str, option: str) -> None:
        """Store the answer to a question."""
        ...

    async def request_stop(self, turn_id: str, graceful: bool, reason: str | None) -> None:
        """Note that a turn is to end."""
        ...

    async def resume(self, turn_id: str) -> None:
        """Let a held turn go on with any plan."""
        ...

    async def release(self, turn_id: str) -> None:
        """Take a turn away from the worker that runs it."""
        ...

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        """The conversation of a session."""
        ...


class AttemptStore(Protocol):
    """Records one attempt of a turn.

    Every method raises `TurnLost` when another worker has the turn, and `EngineUnavailableError` when nothing could be recorded.
    """

    async def note_plan(self, turn: ClaimedTurn, plan: Mapping[str, str]) -> None:
        """Record the plan that a turn begins with."""
        ...

    async def begin_step(self, turn: ClaimedTurn, step: Step) -> StopRequest | None:
        """Record that a model call or a tool call begins now; not if an immediate stop is stored. Returns the stop."""
        ...

    async def finish_step(self, turn: ClaimedTurn, step: Step, result: str) -> StopRequest | None:
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
