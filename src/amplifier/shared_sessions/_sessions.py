"""Open sessions that several callers use: one task opens and closes a session, others run its turns, one at a time, and watch them.

All those of a server are found by id: opened in one task group, closed when idle, all closed at its end.
"""

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
    """Run one turn to its end, whatever that is.

    Args:
        session: It is open.
        prompt: None to go on with the turn that was cut off.
        record: Has every event already when ``show`` gets it.
        show: What it raises ends the turn and leaves as it is.
        schema: JSON Schema; the result is JSON text that fits it.
        flush: Called when every event that is ready has been shown; what it raises ends the turn as well.
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
    except Exception as error:  # a turn runs third-party code
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
        """Run a turn that was claimed; how it ended is in ``turn.ended`` as well. The claim is given up with `end_turn`.

        Raises:
            Exception: What ``show`` raises.
        """
        async with self.log.watched(
            self._abandoned_seconds, partial(self.stop, "its client has left")
        ):
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


# ── all sessions of a server ──────────────────────────────────────────────────────────────────────


Reason: TypeAlias = Literal["session_open", "too_many_sessions", "stopping", "not_started"]


@final
class SessionRefused(AmplifierError):
    """A session cannot be opened now.

    Attributes:
        code: The reason.
    """

    def __init__(self, code: Reason, message: str) -> None:
        super().__init__(message)
        self.code: Reason = code

    @classmethod
    def because_not_started(cls) -> Self:
        """No task group runs that could hold it."""
        message = "the application has not been started: the server, or the application around it, has to run its lifespan"
        return cls("not_started", message)


class LiveSessions(Generic[T]):
    """All open sessions of a server.

    Args:
        most: How many may be open.
        idle_seconds: After which one that is not used is closed; None for never.
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
        """Sessions can be opened inside the block; at its end all are closed."""
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
        """Keep an id for the block, which opens a session.

        Raises:
            SessionRefused: It is open or reserved, or there are too many.
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
        """Open a session whose id is reserved.

        Args:
            live: Not opened yet.
            check: Raises if it cannot be used; then it is closed again.

        Raises:
            SessionRefused: No task group runs.
            Exception: What its opening or the check raised.
        """
        group = self._task_group()
        await group.start(self._hold, live)
        try:
            checked = check(live.session)
            if isinstance(checked, Awaitable):
                await checked
        except BaseException:
            with anyio.CancelScope(shield=True):  # bounded by the session's own deadlines
                await live.close()
            raise
        self._open[live.session_id] = live
        return live

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run something, such as a turn, that goes on when the request that began it is over.

        Raises:
            SessionRefused: No task group runs.
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
        """The open session of this id, which counts as a use."""
        live = self._open.get(session_id)
        if live is not None:
            live.used_at = anyio.current_time()
        return live

    def all(self) -> list[LiveSession[T]]:
        """All open sessions, the oldest first."""
        return list(self._open.values())

    def without(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """No session of this id is open in the block: if it is, it is closed first.

        From this call on no one finds it, and no one opens its id before the end of the block.

        Raises:
            SessionRefused: It is being opened, or closed by someone else.
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
        """Open no more sessions and close those that are open, which ends the responses of their watchers."""
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
