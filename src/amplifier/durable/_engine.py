"""The one interface of all engines: start a turn, watch it, answer its questions, stop it, get its result; and run workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, Protocol, TypeAlias

import attrs
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from amplifier.kernel import AmplifierSession
from amplifier.live import Question
from amplifier.models import Prompt

__all__ = ["DurableEngine", "Question", "SessionFactory", "TurnState", "TurnStatus", "WatchedEvent"]

TurnState: TypeAlias = Literal["queued", "running", "held", "completed", "failed", "stopped"]
"""What a turn does: the first three are open, the others final. A ``held`` turn waits for `DurableEngine.resume`."""

SessionFactory: TypeAlias = Callable[[str], AmplifierSession]
"""Makes the session of an id, not opened; called by workers for every attempt of a turn, on their event loop.

It is a plain function and has to be quick. What it raises ends the turn.

Its context has to begin empty, as context-simple does: the engine keeps the conversation and hands it over.
"""


@attrs.frozen(kw_only=True)
class TurnStatus:
    """A turn at one moment.

    Attributes:
        turn_id: The turn.
        session_id: Its session.
        state: What it does.
        attempt: How often a worker has begun it or gone on with it.
        worker: Who runs it, or ran it last.
        answer: The text of a completed turn; of one that was stopped gracefully, the text so far.
        error_type: The class of the error that it failed with or is held for.
        error: Its message.
        questions: What waits for an answer.
    """

    turn_id: str
    session_id: str
    state: TurnState
    attempt: int
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


class DurableEngine(Protocol):
    """Runs turns so that they survive the processes that run them.

    An application starts turns and looks after them; workers, in the same process or others, run them. A turn belongs to a
    session; a session has one open turn at a time, and the engine keeps its conversation between turns. Every method raises
    `EngineClosedError` when the engine has been closed.
    """

    async def start(self, session_id: str, prompt: Prompt, *, turn_id: str | None = None) -> str:
        """Hand a turn over; on return it is stored, and a worker will run it.

        Args:
            session_id: The session, new or not.
            prompt: The text of the user, or a list of texts and blocks, as for `AmplifierSession.execute`.
            turn_id: A name of the caller's for the turn, in the form of a session id. Starting it again with the same session and
                prompt does nothing.

        Returns:
            The turn's id.

        Raises:
            SessionBusyError: The session has an open turn.
            TurnConflictError: The id belongs to another turn.
            PlanError: The session id is wrong.
            ValueError: The turn id is wrong, or the prompt has NUL or lone surrogates.
            EngineUnavailableError: Nothing was stored.
        """
        ...

    async def status(self, turn_id: str) -> TurnStatus:
        """What a turn does now.

        Raises:
            UnknownTurnError: There is no such turn.
            EngineUnavailableError: The engine cannot be asked.
        """
        ...

    async def result(self, turn_id: str) -> str:
        """Wait for a turn's answer; use a cancel scope to limit the wait.

        Raises:
            TurnFailedError: It ended with an error.
            TurnStoppedError: It was stopped.
            TurnHeldError: It does not go on by itself.
            UnknownTurnError: There is no such turn.
            EngineUnavailableError: The engine cannot be asked.
        """
        ...

    def watch(self, turn_id: str, *, after: int = 0) -> AsyncIterator[WatchedEvent]:
        """The events of a turn, until it ends; any number of watchers, also afterwards.

        Args:
            turn_id: The turn.
            after: Only events behind this position, for a watcher that has lost its connection.

        Raises:
            UnknownTurnError: There is no such turn.
            EngineUnavailableError: The engine cannot be asked.
        """
        ...

    async def approve(self, turn_id: str, question_id: str, option: str) -> None:
        """Answer a question; on return the answer is stored, whether a worker is there or not.

        Raises:
            QuestionClosedError: It does not wait, or does not offer this option.
            UnknownTurnError: There is no such turn.
            EngineUnavailableError: Nothing was stored.
        """
        ...

    async def stop(self, turn_id: str, *, graceful: bool = False, reason: str | None = None) -> None:
        """Ask for the end of a turn; returns at once, `result` waits. Nothing happens to a turn that has ended.

        Args:
            turn_id: The turn.
            graceful: Let running tools finish.
            reason: For the events.

        Raises:
            UnknownTurnError: There is no such turn.
            EngineUnavailableError: Nothing was stored.
        """
        ...

    async def resume(self, turn_id: str) -> None:
        """Let a turn that is held go on, with the plan that workers have now. Nothing happens to others.

        Raises:
            UnknownTurnError: There is no such turn.
            EngineUnavailableError: Nothing was stored.
        """
        ...

    async def release(self, turn_id: str) -> None:
        """Take a running turn away from its worker, whatever that does, and let another one go on. Nothing happens to others.

        For a worker that beats and gets nowhere. It cannot record anything about the turn any more.

        Raises:
            UnknownTurnError: There is no such turn.
            EngineUnavailableError: Nothing was stored.
        """
        ...

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        """The conversation of a session after its latest ended turn; empty if there is none.

        Raises:
            EngineUnavailableError: The engine cannot be asked.
        """
        ...

    async def work(
        self,
        make_session: SessionFactory,
        *,
        concurrency: int = 10,
        task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """Run turns until cancelled; those that are running then are handed over to other workers.

        Args:
            make_session: Makes the session of a turn.
            concurrency: Turns that run at the same time.
            task_status: Is told when turns are accepted.

        Raises:
            EngineUnavailableError: The engine cannot be reached any more; its turns go on with other workers, or with this one
                when it is started again.
            EngineClosedError: The engine's block was left.
        """
        ...
