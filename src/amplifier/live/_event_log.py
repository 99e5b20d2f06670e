"""The latest events of a session, for any number of watchers: each reads at its own pace, and none holds up the turn."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import anyio
import orjson

__all__ = ["EventLog"]

MOST_EVENTS: Final = 5000
MOST_BYTES: Final = 4 * 1024 * 1024
"""What is kept for watchers that reconnect or are slow; older events are dropped."""


_AT_ONCE = 100


class EventLog:
    """Events with increasing numbers, the latest ones as JSON."""

    def __init__(self, *, most_events: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._changed = anyio.Event()
        self._closed = False
        self.last_id: int = 0
        """The number of the latest event."""

    def __repr__(self) -> str:
        return f"<EventLog: {len(self._events)} of {self.last_id} events, {self._bytes} bytes>"

    def add(self, kind: str, **fields: Any) -> None:
        """Add an event; never waits."""
        self.last_id += 1
        data = orjson.dumps({"id": self.last_id, "type": kind, **fields}, default=str)
        self._events.append(data)
        self._bytes += len(data)
        while len(self._events) > self._most_events or (self._bytes > self._most_bytes and len(self._events) > 1):
            self._bytes -= len(self._events.popleft())
        self._wake()

    def close(self) -> None:
        """No more events will come."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @property
    def is_closed(self) -> bool:
        """Whether no more events will come."""
        return self._closed

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """Events after a number, a bounded amount of them; a watcher that has missed some gets one of type ``gap`` first."""
        first = self.last_id - len(self._events) + 1
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
            await self._changed.wait()
