"""The latest events for any number of readers, and runs that outlive the request for them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Generic, TypeAlias, TypeVar

import anyio
import orjson

_LATEST_EVENTS: Final = 5000
_LATEST_BYTES: Final = 4 * 1024 * 1024
"""Limits of the events kept for readers that reconnect or are slow. Older events are dropped."""

_MAX_AT_ONCE = 100


class EventLog:
    """Events with increasing numbers. The latest are kept, as bytes.

    Attributes:
        readers: The current readers. Each has a cursor and its own pace.
        size: The number of bytes of the kept events.
        used_at: The time at which the latest reader left, on the event loop's clock.
    """

    def __init__(
        self, *, most_events: int = _LATEST_EVENTS, most_bytes: int = _LATEST_BYTES
    ) -> None:
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._events: deque[bytes] = deque()
        self.size: int = 0
        self.readers: list[Reader] = []
        self.used_at: float = 0.0
        self._readings = 0
        self._changed: anyio.Event | None = None
        self._closed = False
        self.last_id: int = 0
        """The number of the latest event."""

    def __repr__(self) -> str:
        return f"<EventLog: {len(self._events)} of {self.last_id} events, {self.size} bytes>"

    def add(self, kind: str, **fields: Any) -> None:
        """Add an event as JSON, without waiting."""
        self.append(orjson.dumps({"id": self.last_id + 1, "type": kind, **fields}, default=str))

    def append(self, data: bytes) -> None:
        """Add an event unchanged, without waiting."""
        self.last_id += 1
        self._events.append(data)
        self.size += len(data)
        while len(self._events) > self._most_events or (
            self.size > self._most_bytes and len(self._events) > 1
        ):
            self.size -= len(self._events.popleft())
        self.wake()

    def close(self) -> None:
        """Announce that no more events will come."""
        self._closed = True
        self.wake()

    def wake(self) -> None:
        """Wake all tasks that wait for a change."""
        # Most events arrive while no task waits.
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set()

    async def _wait_changed(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    @property
    def is_closed(self) -> bool:
        """True if no more events will come."""
        return self._closed

    @property
    def first_id(self) -> int:
        """The number of the oldest event that is kept. Without any, that of the next event."""
        return self.last_id - len(self._events) + 1

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """Return the events after a number, within limits.

        A watcher that has missed events first gets one of type ``gap``.
        """
        first = self.first_id
        events: list[tuple[int, bytes]] = []
        if number < first - 1:
            number = first - 1
            events.append((number, orjson.dumps({"id": number, "type": "gap"})))
        for position in range(number + 1, min(self.last_id, number + _MAX_AT_ONCE) + 1):
            events.append((position, self._events[position - first]))
        return events

    async def wait_after(self, number: int) -> None:
        """Wait until there is an event after this number or the log is closed."""
        while self.last_id <= number and not self._closed:
            await self._wait_changed()

    @contextmanager
    def reading(self, after: int) -> Iterator[Reader]:
        """Let a client read inside the block, from the event after this number on."""
        reader = Reader(self, min(after, self.last_id))
        self.readers.append(reader)
        self._readings += 1
        self.wake()
        try:
            yield reader
        finally:
            self.readers.remove(reader)
            self.used_at = anyio.current_time()
            self.wake()

    async def wait_taken(self) -> None:
        """Wait until all readers have accepted all events."""
        while any(reader.position < self.last_id for reader in self.readers):
            await self._wait_changed()

    async def wait_ready(self) -> None:
        """Wait until no reader is busy with earlier events."""
        while any(reader.is_behind for reader in self.readers):
            await self._wait_changed()

    @asynccontextmanager
    async def watched(
        self, seconds: float | None, stop: Callable[[], object]
    ) -> AsyncIterator[None]:
        """Call ``stop`` if readers existed inside the block and have been gone for ``seconds``.

        If ``seconds`` is None or 0, ``stop`` is never called.
        """
        if not seconds:
            yield
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._stop_when_abandoned, seconds, stop)
            yield
            group.cancel_scope.cancel()

    async def _stop_when_abandoned(self, seconds: float, stop: Callable[[], object]) -> None:
        before = self._readings - len(self.readers)
        while True:
            is_left = not self.readers and self._readings > before
            with anyio.CancelScope(
                deadline=self.used_at + seconds if is_left else math.inf
            ) as scope:
                await self._wait_changed()
            if scope.cancelled_caught:
                stop()
                return


class Reader:
    """The cursor of one client.

    Attributes:
        position: The number of the latest event that the client has accepted.
    """

    def __init__(self, log: EventLog, position: int) -> None:
        self._log = log
        self._given = position
        self.position: int = position

    @property
    def is_behind(self) -> bool:
        """True if there are newer events than those that are being sent to the client."""
        return self.position < self._given < self._log.last_id

    def next_nowait(self) -> list[tuple[int, bytes]] | None:
        """Return the result of `next` if it is ready, or None."""
        if self._log.last_id <= self._given:
            return None
        self.position = self._given
        self._log.wake()
        news = self._log.after(self.position)
        self._given = news[-1][0]
        return news

    async def next(self) -> list[tuple[int, bytes]]:
        """Wait for events after those returned before, which count as accepted.

        Returns:
            The events, or an empty list at the end of the log.
        """
        self.position = self._given
        self._log.wake()
        await self._log.wait_after(self.position)
        news = self._log.after(self.position)
        self._given = news[-1][0] if news else self._given
        return news


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


T = TypeVar("T")

_MAX_EVENTS: Final = 100_000
_MAX_KEPT: Final = 1000
_MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of all ended runs together. The oldest are deleted first."""

_MAX_UNSENT: Final = 64 * 1024
"""Maximum number of bytes of events that are added before waiting for readers."""


class ClientLeft(Exception):
    """Raised if the client doesn't accept the events that are sent."""


class LiveRun(Generic[T]):
    """Work that a client has requested, in its own task.

    Args:
        about: The server's own data about it.
        stays: Seconds for which the work continues without a client. 0 if it ends with its client,
            None if it needs no client.

    Attributes:
        about: The server's own data about it.
        stays: The argument `stays`.
        log: The events for clients.
        error: The exception that ended the work, or None.
        over: Set once the work has fully ended.
        is_refused: True if the client didn't accept the events.
    """

    def __init__(self, about: T, stays: float | None) -> None:
        self.about = about
        self.stays = stays
        self.log: EventLog = EventLog(most_events=_MAX_EVENTS)
        self.error: Exception | None = None
        self.over: anyio.Event = anyio.Event()
        self.is_refused: bool = False
        self._unsent = 0
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        return f"<LiveRun: {'over' if self.over.is_set() else 'running'}, {self.log!r}>"

    @property
    def has_begun(self) -> bool:
        """True if the work has written anything."""
        return self.log.last_id > 0

    @property
    def has_lost_client(self) -> bool:
        """True if the run ends with its client, and the client did not accept the events."""
        return self.is_refused and self.stays == 0

    def add(self, data: bytes) -> None:
        """Add an event without waiting.

        `flush` or `wait_taken` has to follow the last event that is ready.
        """
        self.log.append(data)
        self._unsent += len(data)

    @property
    def is_full(self) -> bool:
        """True if so much was added since the latest `flush` that readers need time."""
        return self._unsent >= _MAX_UNSENT

    async def flush(self) -> None:
        """Wait while clients are busy with earlier events. If `is_full`, wait for all events.

        Raises:
            ClientLeft: The client didn't accept the events, and the run ends with its client.
        """
        await self._wait(self.log.wait_taken if self.is_full else self.log.wait_ready)

    async def wait_taken(self) -> None:
        """Wait until clients have accepted everything.

        Raises:
            ClientLeft: The client didn't accept the events, and the run ends with its client.
        """
        await self._wait(self.log.wait_taken)

    async def write(self, data: bytes) -> None:
        """Add an event and wait until clients have accepted it. See `wait_taken`."""
        self.add(data)
        await self.wait_taken()

    async def _wait(self, wait: Callable[[], Awaitable[None]]) -> None:
        self._unsent = 0
        await wait()
        if self.has_lost_client:
            raise ClientLeft

    async def run(self, work: Work[T]) -> None:
        """Do the work until it ends or is cancelled."""
        try:
            with self._scope:
                async with self.log.watched(self.stays, self.stop):
                    try:
                        await work(self)
                    except Exception as error:  # noqa: BLE001 — third-party modules
                        self.error = error
        finally:
            self.log.close()
            self.over.set()

    def stop(self) -> None:
        """Cancel the work, without waiting."""
        self._scope.cancel()

    async def cancel(self) -> None:
        """Cancel the work and wait until it has unwound, within the session's deadlines."""
        self.stop()
        with anyio.CancelScope(shield=True):
            await self.over.wait()


Work: TypeAlias = Callable[[LiveRun[T]], Awaitable[object]]


class LiveRuns(Generic[T]):
    """The runs that clients can return to, including the latest that have ended.

    Args:
        start_soon: Starts a task, as `LiveSessions.start_soon` does.
    """

    def __init__(self, start_soon: Callable[..., None]) -> None:
        self._start_soon = start_soon
        self._named: dict[str, LiveRun[T]] = {}

    def __repr__(self) -> str:
        return f"<LiveRuns: {len(self._named)} that clients can come back to>"

    def start(
        self, work: Work[T], about: T, *, stays: float | None, name: str | None = None
    ) -> LiveRun[T]:
        """Start a run. A named run can be found until it has ended and newer runs need its room.

        Raises:
            SessionRefused: The server hasn't been started.
        """
        run = LiveRun(about, stays)
        self._start_soon(run.run, work)
        if name is not None:
            self._named[name] = run
        over = [kept for kept, ended in self._named.items() if ended.over.is_set()]
        size = sum(self._named[kept].log.size for kept in over)
        while len(over) > _MAX_KEPT or size > _MAX_BYTES:
            size -= self._named.pop(over.pop(0)).log.size
        return run

    def find(self, name: str) -> LiveRun[T] | None:
        """Return the run of this name, or None.

        A run that failed before it wrote anything may be tried again, so it isn't found.
        """
        run = self._named.get(name)
        return None if run is None or (run.error is not None and not run.has_begun) else run

    def forget(self, name: str) -> bool:
        """Forget the run of this name. Return whether there was one."""
        return self._named.pop(name, None) is not None
