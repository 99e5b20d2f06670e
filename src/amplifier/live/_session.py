"""An open session that several callers use: one task opens and closes it, others run its turns, one at a time, and watch them."""

from __future__ import annotations

import json
import logging
import secrets
from contextlib import ExitStack
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import attrs
from anyio.abc import TaskStatus

from amplifier.errors import ExecutionCancelled, SessionBusyError
from amplifier.kernel import AmplifierSession
from amplifier.models._prompts import Prompt
from amplifier.turns import Ended, Show, TurnRecord, TurnStatus

from ._event_log import EventLog
from ._questions import Questions

logger: logging.Logger = logging.getLogger("amplifier.live")

T = TypeVar("T")


async def run_turn(
    session: AmplifierSession,
    prompt: Prompt | None,
    record: TurnRecord,
    show: Show,
    *,
    schema: dict[str, Any] | None = None,
) -> Ended:
    """Run one turn to its end, whatever that is.

    Args:
        session: It is open.
        prompt: None to go on with the turn that was cut off.
        record: Has every event already when ``show`` gets it.
        show: What it raises ends the turn and leaves as it is.
        schema: JSON Schema; the result is JSON text that fits it.
    """
    failure: Exception | None = None
    try:
        stream = (
            session.stream_resumed_turn(result_type=schema)
            if prompt is None
            else session.stream(prompt, result_type=schema)
        )
        async with stream as events:
            async for event in events:
                text = record.add(event)
                try:
                    await show(event, text)
                except Exception as error:
                    failure = error
                    raise
    except Exception as error:  # a turn runs third-party code
        if error is failure:
            raise
        return Ended(status="cancelled" if isinstance(error, ExecutionCancelled) else "error", error=error)
    status: TurnStatus = "cancelled" if session.status.status == "cancelled" else "success"
    result = events.result if schema is None else json.dumps(events.result, ensure_ascii=False)
    return Ended(status=status, result=result)


@attrs.define(eq=False, kw_only=True)
class LiveTurn:
    """A turn that has been claimed.

    Attributes:
        prompt: None to go on with the turn that was cut off.
        claims: What it holds: the session, and whatever its server limits.
        record: What has happened so far.
        ended: How it ended.
        over: Set when nothing of it is left.
        report: How it ended, as its server describes it.
        scope: For what is done with the session and is no turn of the model; stopping cancels it.
    """

    prompt: Prompt | None
    claims: ExitStack
    turn_id: str = attrs.field(factory=lambda: secrets.token_hex(8))
    record: TurnRecord = attrs.field(factory=TurnRecord)
    ended: Ended = attrs.field(factory=lambda: Ended(status="cancelled"))
    over: anyio.Event = attrs.field(factory=anyio.Event)
    report: dict[str, Any] = attrs.field(factory=dict)
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)


class LiveSession(Generic[T]):
    """A session that is open for as long as `run` runs.

    Args:
        session: Not opened yet.
        about: What its server keeps with it.
        log: What callers read.
        questions: Those of its approval system.
        abandoned_seconds: After which a turn is stopped when the last of its watchers has left; None for never.

    Attributes:
        used_at: When it was used last, by the clock of the event loop.
    """

    def __init__(
        self,
        session: AmplifierSession,
        about: T,
        *,
        log: EventLog | None = None,
        questions: Questions | None = None,
        abandoned_seconds: float | None = None,
    ) -> None:
        self.session = session
        self.about = about
        self.log: EventLog = log or EventLog()
        self.questions: Questions = questions or Questions()
        self.used_at: float = anyio.current_time()
        self._abandoned_seconds = abandoned_seconds
        self._leave = anyio.Event()
        self._closed = anyio.Event()
        self._turn: LiveTurn | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "running a turn" if self.is_busy else "idle"
        return f"<LiveSession {self.session_id}: {state}, {len(self.log.readers)} watchers>"

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.session.session_id

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running, or has been claimed."""
        return self._turn is not None

    # ── open and closed ──

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Open the session, report that with ``task_status``, and close it after `close` or when cancelled.

        What goes wrong while it opens is raised by ``TaskGroup.start``; a failure of closing is logged, because the task group
        holds other sessions as well.
        """
        try:
            await self._hold_open(task_status)
        finally:
            self._closed.set()

    async def _hold_open(self, task_status: TaskStatus[None]) -> None:
        is_open = False
        try:
            async with self.session:
                is_open = True
                task_status.started()
                await self._leave.wait()
                if self._turn is not None:
                    over = self._turn.over
                    self.stop("the session is being closed")
                    await over.wait()
        except Exception:
            if not is_open:
                raise
            logger.exception("session %r could not be closed properly", self.session_id)

    async def close(self) -> None:
        """Stop the turn, end `run` and wait until the session is closed."""
        self._leave.set()
        await self._closed.wait()

    # ── turns ──

    def begin_turn(self, prompt: Prompt | None) -> LiveTurn:
        """Claim the session for a turn, which `run_turn` runs, until `end_turn`.

        Raises:
            SessionBusyError: Another turn is running, or the session is being closed.
        """
        if self._turn is not None:
            raise SessionBusyError(f"session {self.session_id!r} is running a turn; wait for its end or stop it")
        if self._leave.is_set():
            raise SessionBusyError(f"session {self.session_id!r} is being closed")
        self._turn = LiveTurn(prompt=prompt, claims=ExitStack())
        self.questions.uses = self._turn.record.tools
        self.session.coordinator.cancellation.reset()
        return self._turn

    async def run_turn(self, turn: LiveTurn, show: Show) -> Ended:
        """Run a turn that was claimed; how it ended is in ``turn.ended`` as well. The claim is given up with `end_turn`.

        Raises:
            Exception: What ``show`` raises.
        """
        async with self.log.watched(self._abandoned_seconds, partial(self.stop, "its client has left")):
            turn.ended = await run_turn(self.session, turn.prompt, turn.record, show)
        return turn.ended

    def end_turn(self, turn: LiveTurn) -> None:
        """Give up the claim; nothing happens the second time."""
        turn.claims.close()
        if self._turn is turn:
            self._turn = None
            self.used_at = anyio.current_time()
        turn.over.set()

    def stop(self, reason: str) -> bool:
        """Stop the running turn immediately; returns whether there was one."""
        if self._turn is None:
            return False
        self.session.coordinator.cancellation.request_immediate(reason=reason)
        self._turn.scope.cancel()
        return True
