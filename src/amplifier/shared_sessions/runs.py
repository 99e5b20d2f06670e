"""The latest events of a session or a run, for any number of readers, each with a cursor and its own pace; and runs that outlive the request that began them."""

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
"""What is kept for readers that reconnect or are slow; older events are dropped."""

_AT_ONCE = 100


class EventLog:
    """Events with increasing numbers, the latest ones as bytes.

    Attributes:
        readers: Those that read now.
        size: Bytes of what is kept.
        used_at: When the latest reader left, by the clock of the event loop.
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
        """Add an event as JSON; never waits."""
        self.append(orjson.dumps({"id": self.last_id + 1, "type": kind, **fields}, default=str))

    def append(self, data: bytes) -> None:
        """Add an event as it is; never waits."""
        self.last_id += 1
        self._events.append(data)
        self.size += len(data)
        while len(self._events) > self._most_events or (
            self.size > self._most_bytes and len(self._events) > 1
        ):
            self.size -= len(self._events.popleft())
        self.wake()

    def close(self) -> None:
        """No more events will come."""
        self._closed = True
        self.wake()

    def wake(self) -> None:
        """Something has changed for those who wait."""
        # Most events come while no one waits.
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set()

    async def _wait_changed(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    @property
    def is_closed(self) -> bool:
        """Whether no more events will come."""
        return self._closed

    @property
    def first_id(self) -> int:
        """The number of the oldest event that is kept, or of the first one to come."""
        return self.last_id - len(self._events) + 1

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """Events after a number, a bounded amount of them; a watcher that has missed some gets one of type ``gap`` first."""
        first = self.first_id
        found: list[tuple[int, bytes]] = []
        if number < first - 1:
            number = first - 1
            found.append((number, orjson.dumps({"id": number, "type": "gap"})))
        for each in range(number + 1, min(self.last_id, number + _AT_ONCE) + 1):
            found.append((each, self._events[each - first]))
        return found

    async def wait_after(self, number: int) -> None:
        """Wait until there is an event after this number, or the log is closed."""
        while self.last_id <= number and not self._closed:
            await self._wait_changed()

    @contextmanager
    def reading(self, after: int) -> Iterator[Reader]:
        """A client reads inside the block, from the event after this number on."""
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
        """Wait until everyone who reads has taken all events."""
        while any(reader.position < self.last_id for reader in self.readers):
            await self._wait_changed()

    async def wait_ready(self) -> None:
        """Wait until no one who reads is busy with earlier events, so that the latest ones will be taken next."""
        while any(reader.is_behind for reader in self.readers):
            await self._wait_changed()

    @asynccontextmanager
    async def watched(
        self, seconds: float | None, stop: Callable[[], object]
    ) -> AsyncIterator[None]:
        """Call ``stop`` if, in the block, someone has read and no one has for a while; never for None or 0."""
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
        position: The latest event that the client has taken.
    """

    def __init__(self, log: EventLog, position: int) -> None:
        self._log = log
        self._given = position
        self.position: int = position

    @property
    def is_behind(self) -> bool:
        """True if the client is still being sent events while there are newer ones."""
        return self.position < self._given < self._log.last_id

    def next_nowait(self) -> list[tuple[int, bytes]] | None:
        """What `next` returns, if there is something already; None if not."""
        if self._log.last_id <= self._given:
            return None
        self.position = self._given
        self._log.wake()
        news = self._log.after(self.position)
        self._given = news[-1][0]
        return news

    async def next(self) -> list[tuple[int, bytes]]:
        """What comes next, when what came before has been taken; empty at the end of the log."""
        self.position = self._given
        self._log.wake()
        await self._log.wait_after(self.position)
        news = self._log.after(self.position)
        self._given = news[-1][0] if news else self._given
        return news


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


T = TypeVar("T")

_MOST_EVENTS: Final = 100_000
_MOST_KEPT: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of runs that are over; the oldest ones are forgotten first."""

_MOST_UNSENT: Final = 64 * 1024
"""Bytes of events that are added before readers are waited for."""


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
        self._unsent = 0
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        return f"<LiveRun: {'over' if self.over.is_set() else 'running'}, {self.log!r}>"

    @property
    def has_begun(self) -> bool:
        """Whether it has written anything."""
        return self.log.last_id > 0

    @property
    def has_lost_client(self) -> bool:
        """True if its client did not take what was sent, and it ends with its client."""
        return self.is_refused and self.stays == 0

    def add(self, data: bytes) -> None:
        """Add an event without waiting. After the last one that is ready comes `flush`, or `wait_taken`."""
        self.log.append(data)
        self._unsent += len(data)

    @property
    def is_full(self) -> bool:
        """True if so much was added since the latest `flush` that readers are to be waited for."""
        return self._unsent >= _MOST_UNSENT

    async def flush(self) -> None:
        """Wait while clients are still busy with what came before; if it is full, until they have taken everything.

        Raises:
            ClientLeft: Its client did not take it, and it ends with its client.
        """
        await self._wait(self.log.wait_taken if self.is_full else self.log.wait_ready)

    async def wait_taken(self) -> None:
        """Wait until clients have taken everything.

        Raises:
            ClientLeft: Its client did not take it, and it ends with its client.
        """
        await self._wait(self.log.wait_taken)

    async def write(self, data: bytes) -> None:
        """Add an event and wait until clients have taken it; see `wait_taken`."""
        self.add(data)
        await self.wait_taken()

    async def _wait(self, wait: Callable[[], Awaitable[None]]) -> None:
        self._unsent = 0
        await wait()
        if self.has_lost_client:
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

    def start(
        self, work: Work[T], about: T, *, stays: float | None, name: str | None = None
    ) -> LiveRun[T]:
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
