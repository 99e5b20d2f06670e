"""Open sessions that several callers share, and a server's collection of them."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, final

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus

from amplifier.errors import AmplifierError, ExecutionCancelled, SessionBusyError
from amplifier.kernel import AmplifierSession
from amplifier.models.prompts import Prompt
from amplifier.models.turns import Ended, Show, TurnRecord, TurnStatus

from .questions import Questions
from .runs import EventLog

logger: logging.Logger = logging.getLogger("amplifier.shared_sessions")

T = TypeVar("T")


async def run_turn(
    session: AmplifierSession,
    prompt: Prompt | None,
    record: TurnRecord,
    show: Show,
    *,
    schema: dict[str, Any] | None = None,
    flush: Callable[[], Awaitable[object]] | None = None,
) -> Ended:
    """Run one turn to its end.

    Args:
        session: The open session.
        prompt: The prompt. None continues the interrupted turn.
        record: The record of the turn, to which an event is added before ``show`` receives it.
        show: Shows one event. An exception ends the turn and is raised unchanged.
        schema: A JSON Schema, or None. With a schema, the result is JSON text that matches it.
        flush: Called when every event that is ready has been shown. An exception ends the turn.
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
                    if flush is not None and not events.has_ready:
                        await flush()
                except Exception as error:
                    failure = error
                    raise
    except Exception as error:  # third-party code
        if error is failure:
            raise
        return Ended(
            status="cancelled" if isinstance(error, ExecutionCancelled) else "error", error=error
        )
    status: TurnStatus = "cancelled" if session.status.status == "cancelled" else "success"
    result = events.result if schema is None else json.dumps(events.result, ensure_ascii=False)
    return Ended(status=status, result=result)


@attrs.define(eq=False, kw_only=True)
class LiveTurn:
    """A turn that has been claimed.

    Attributes:
        prompt: The prompt. None continues the interrupted turn.
        claims: Everything that the turn holds: the session, and its share of the server's limits.
        turn_id: The id of the turn.
        record: A summary of the events so far.
        ended: How the turn ended. "cancelled" before that.
        over: Set once the turn has fully ended.
        report: The server's description of the end.
        scope: A scope for work on the session that isn't a turn of the model. `LiveSession.stop`
            cancels it.
    """

    prompt: Prompt | None
    claims: ExitStack
    turn_id: str = attrs.field(factory=lambda: secrets.token_hex(8))
    record: TurnRecord = attrs.field(factory=TurnRecord)
    ended: Ended = attrs.field(factory=lambda: Ended(status="cancelled"))
    over: anyio.Event = attrs.field(factory=anyio.Event)
    report: dict[str, Any] = attrs.field(factory=dict)
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)


# One task opens and closes a session. Other tasks run its turns, one at a time, and watch them.


class LiveSession(Generic[T]):
    """A session that is open while `run` runs.

    Args:
        session: The session, not opened yet.
        about: The server's own data about it.
        log: The log that callers read.
        questions: The questions of its approval system.
        abandoned_seconds: Seconds after which a turn is stopped when the last of its watchers has
            left. None for never.

    Attributes:
        session: The session.
        about: The server's own data about it.
        log: The log that callers read.
        questions: The questions of its approval system.
        used_at: The time of the latest use, on the event loop's clock.
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
        """True if a turn is running, or has been claimed."""
        return self._turn is not None

    # ── open and closed ──

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Open the session, signal that it is open, and close it on `close` or cancellation.

        If opening fails, ``TaskGroup.start`` raises the error. If closing fails, the error is
        logged, since the task group holds other sessions as well.
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
        """Stop the turn, end `run`, and wait until the session is closed."""
        self._leave.set()
        await self._closed.wait()

    # ── turns ──

    def begin_turn(self, prompt: Prompt | None) -> LiveTurn:
        """Claim the session for a turn of `run_turn`, until `end_turn`.

        Raises:
            SessionBusyError: Another turn is running, or the session is being closed.
        """
        if self._turn is not None:
            raise SessionBusyError(
                f"session {self.session_id!r} is running a turn; wait for its end or stop it"
            )
        if self._leave.is_set():
            raise SessionBusyError(f"session {self.session_id!r} is being closed")
        self._turn = LiveTurn(prompt=prompt, claims=ExitStack())
        self.questions.uses = self._turn.record.tools
        self.session.coordinator.cancellation.reset()
        return self._turn

    async def run_turn(self, turn: LiveTurn, show: Show) -> Ended:
        """Run a claimed turn and store its end in ``turn.ended``. `end_turn` gives up the claim.

        Raises:
            Exception: ``show`` raised an exception.
        """
        async with self.log.watched(
            self._abandoned_seconds, partial(self.stop, "its client has left")
        ):
            turn.ended = await run_turn(self.session, turn.prompt, turn.record, show)
        return turn.ended

    def end_turn(self, turn: LiveTurn) -> None:
        """Give up the claim. A second call does nothing."""
        turn.claims.close()
        if self._turn is turn:
            self._turn = None
            self.used_at = anyio.current_time()
        turn.over.set()

    def stop(self, reason: str) -> bool:
        """Stop the running turn immediately. Return whether there was one."""
        if self._turn is None:
            return False
        self.session.coordinator.cancellation.request_immediate(reason=reason)
        self._turn.scope.cancel()
        return True


# ── all sessions of a server ──────────────────────────────────────────────────────────────────────


Reason: TypeAlias = Literal["session_open", "too_many_sessions", "stopping", "not_started"]


@final
class SessionRefused(AmplifierError):
    """Raised if a session can't be opened now.

    Attributes:
        code: The code of the reason.
    """

    def __init__(self, code: Reason, message: str) -> None:
        super().__init__(message)
        self.code: Reason = code

    @classmethod
    def because_not_started(cls) -> Self:
        """Return the error for a server without a task group for its sessions."""
        message = (
            "the application has not been started: the server, or the application around it, has "
            "to run its lifespan"
        )
        return cls("not_started", message)


class LiveSessions(Generic[T]):
    """All open sessions of a server, in one task group.

    Args:
        most: Maximum number of open sessions, or None for no limit.
        idle_seconds: Seconds after which an unused session is closed. None for never.
    """

    def __init__(self, *, most: int | None = None, idle_seconds: float | None = None) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._open: dict[str, LiveSession[T]] = {}
        self._reserved: set[str] = set()
        self._group: TaskGroup | None = None
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<LiveSessions: {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Allow sessions to be opened inside the block. Close all of them at its end."""
        async with anyio.create_task_group() as group:
            self._group = group
            if self._idle_seconds is not None:
                group.start_soon(self._close_idle, self._idle_seconds)
            try:
                yield
            finally:
                self._group = None
                group.cancel_scope.cancel()

    @contextmanager
    def reserved(self, session_id: str) -> Iterator[None]:
        """Reserve an id for the block, which opens a session.

        Raises:
            SessionRefused: The id is open or reserved, or there are too many sessions.
        """
        if self._is_closing:
            raise SessionRefused("stopping", "the server is being stopped")
        if self._most is not None and len(self._open) + len(self._reserved) >= self._most:
            raise SessionRefused(
                "too_many_sessions",
                f"{self._most} sessions are open, which is the limit; delete one",
            )
        self._take(session_id)
        try:
            yield
        finally:
            self._reserved.discard(session_id)

    def _take(self, session_id: str) -> None:
        if session_id in self._open or session_id in self._reserved:
            raise SessionRefused(
                "session_open",
                f"session {session_id!r} is open already, or being opened or deleted",
            )
        self._reserved.add(session_id)

    async def add(
        self, live: LiveSession[T], check: Callable[[AmplifierSession], Awaitable[object] | object]
    ) -> LiveSession[T]:
        """Open a session with a reserved id.

        Args:
            live: The session, not opened yet.
            check: Raises if the session can't be used. The session is then closed again.

        Raises:
            SessionRefused: No task group is running.
            Exception: The opening or the check failed.
        """
        group = self._task_group()
        await group.start(self._hold, live)
        try:
            checked = check(live.session)
            if isinstance(checked, Awaitable):
                await checked
        except BaseException:
            # The session's own deadlines bound this.
            with anyio.CancelScope(shield=True):
                await live.close()
            raise
        self._open[live.session_id] = live
        return live

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run something that continues after the end of its request, such as a turn.

        Raises:
            SessionRefused: No task group is running.
        """
        self._task_group().start_soon(function, *args)

    def _task_group(self) -> TaskGroup:
        if self._group is None:
            raise SessionRefused.because_not_started()
        return self._group

    async def _hold(self, live: LiveSession[T], *, task_status: TaskStatus[None]) -> None:
        try:
            await live.run(task_status=task_status)
        finally:
            if self._open.get(live.session_id) is live:
                del self._open[live.session_id]
            live.log.add("session_closed")
            live.log.close()

    def find(self, session_id: str) -> LiveSession[T] | None:
        """Return the open session of this id, or None. This counts as a use."""
        live = self._open.get(session_id)
        if live is not None:
            live.used_at = anyio.current_time()
        return live

    def all(self) -> list[LiveSession[T]]:
        """Return all open sessions, the oldest first."""
        return list(self._open.values())

    def without(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Close the session of this id, and keep it closed until the end of the block.

        From this call on the session can't be found, and its id can't be opened before the block
        ends.

        Raises:
            SessionRefused: The session is being opened, or another caller is closing it.
        """
        live = self._open.pop(session_id, None)
        if live is None:
            self._take(session_id)
        else:
            self._reserved.add(session_id)
        return self._without(session_id, live)

    @asynccontextmanager
    async def _without(self, session_id: str, live: LiveSession[T] | None) -> AsyncIterator[None]:
        try:
            if live is not None:
                await live.close()
            yield
        finally:
            self._reserved.discard(session_id)

    async def close_all(self) -> None:
        """Refuse new sessions and close the open ones, which ends the responses to watchers."""
        self._is_closing = True
        async with anyio.create_task_group() as group:
            for live in self.all():
                group.start_soon(live.close)

    async def _close_idle(self, seconds: float) -> None:
        while True:
            await anyio.sleep(seconds / 10)
            for live in self.all():
                is_used = live.is_busy or live.log.readers
                if (
                    not is_used
                    and anyio.current_time() - max(live.used_at, live.log.used_at) >= seconds
                ):
                    logger.info(
                        "session %r has not been used for %g s and is closed",
                        live.session_id,
                        seconds,
                    )
                    await live.close()
