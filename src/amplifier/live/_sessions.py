"""The open sessions of a server, by id: opened in one task group, closed when idle, all closed at its end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from amplifier.errors import AmplifierError
from amplifier.kernel import AmplifierSession

from ._session import LiveSession

logger: logging.Logger = logging.getLogger("amplifier.live")

T = TypeVar("T")

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
        message = (
            "the application has not been started: the server, or the application around it, has to run its lifespan"
        )
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
            raise SessionRefused("too_many_sessions", f"{self._most} sessions are open, which is the limit; delete one")
        self._take(session_id)
        try:
            yield
        finally:
            self._reserved.discard(session_id)

    def _take(self, session_id: str) -> None:
        if session_id in self._open or session_id in self._reserved:
            raise SessionRefused("session_open", f"session {session_id!r} is open already, or being opened or deleted")
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
                if not is_used and anyio.current_time() - max(live.used_at, live.log.used_at) >= seconds:
                    logger.info("session %r has not been used for %g s and is closed", live.session_id, seconds)
                    await live.close()
