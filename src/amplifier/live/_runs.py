"""Runs that outlive the request that began them: one log each, a cursor for every client, one way to cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeAlias, TypeVar

import anyio

from ._event_log import EventLog

T = TypeVar("T")

_MOST_EVENTS: Final = 100_000
_MOST_KEPT: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of runs that are over; the oldest ones are forgotten first."""


class ClientLeft(Exception):
    """The client does not take what is sent."""


class LiveRun(Generic[T]):
    """What a client has asked for, in a task of its own.

    Args:
        about: What its server keeps with it.
        stays: Seconds that it goes on without a client; 0 if it ends with its client, None if it needs none.

    Attributes:
        log: What clients get.
        error: What it raised.
        over: Set when nothing of it is left.
        is_refused: Its client did not take what was sent.
    """

    def __init__(self, about: T, stays: float | None) -> None:
        self.about = about
        self.stays = stays
        self.log: EventLog = EventLog(most_events=_MOST_EVENTS)
        self.error: Exception | None = None
        self.over: anyio.Event = anyio.Event()
        self.is_refused: bool = False
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        return f"<LiveRun: {'over' if self.over.is_set() else 'running'}, {self.log!r}>"

    @property
    def has_begun(self) -> bool:
        """Whether it has written anything."""
        return self.log.last_id > 0

    async def write(self, data: bytes) -> None:
        """Write an event; waits while clients are slow.

        Raises:
            ClientLeft: Its client did not take it, and it ends with its client.
        """
        self.log.append(data)
        await self.log.wait_taken()
        if self.is_refused and self.stays == 0:
            raise ClientLeft

    async def run(self, work: Work[T]) -> None:
        """Do the work, to its end or until it is cancelled."""
        try:
            with self._scope:
                async with self.log.watched(self.stays, self.stop):
                    try:
                        await work(self)
                    except Exception as error:  # noqa: BLE001  # third-party modules; its client gets the reason
                        self.error = error
        finally:
            self.log.close()
            self.over.set()

    def stop(self) -> None:
        """Cancel it, without waiting."""
        self._scope.cancel()

    async def cancel(self) -> None:
        """Cancel it and wait until it has unwound, which the deadlines of its session bound."""
        self.stop()
        with anyio.CancelScope(shield=True):
            await self.over.wait()


Work: TypeAlias = Callable[[LiveRun[T]], Awaitable[object]]


class LiveRuns(Generic[T]):
    """The runs that clients can come back to: those that go on, and the latest that are over.

    Args:
        start_soon: Begins a task, such as that of the server's `LiveSessions`.
    """

    def __init__(self, start_soon: Callable[..., None]) -> None:
        self._start_soon = start_soon
        self._named: dict[str, LiveRun[T]] = {}

    def __repr__(self) -> str:
        return f"<LiveRuns: {len(self._named)} that clients can come back to>"

    def start(self, work: Work[T], about: T, *, stays: float | None, name: str | None = None) -> LiveRun[T]:
        """Begin a run; one with a name can be found by it, until it is over and newer ones need its room.

        Raises:
            SessionRefused: The server has not been started.
        """
        run = LiveRun(about, stays)
        self._start_soon(run.run, work)
        if name is not None:
            self._named[name] = run
        over = [each for each, kept in self._named.items() if kept.over.is_set()]
        size = sum(self._named[each].log.size for each in over)
        while len(over) > _MOST_KEPT or size > _MOST_BYTES:
            size -= self._named.pop(over.pop(0)).log.size
        return run

    def find(self, name: str) -> LiveRun[T] | None:
        """The run of this name; one that failed before it wrote anything may be tried again."""
        run = self._named.get(name)
        return None if run is None or (run.error is not None and not run.has_begun) else run

    def forget(self, name: str) -> bool:
        """Forget a run; returns whether there was one."""
        return self._named.pop(name, None) is not None
