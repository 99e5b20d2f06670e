"""The turns that run on all routes: how many there may be, and how they end when the server is stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from amplifier.kernel import AmplifierSession

from ._limits import Limits
from ._problems import Problem

__all__ = ["Turns"]


class Turns:
    """Admits turns, up to the limit, until the server is being stopped."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: set[AmplifierSession] = set()
        self._over = anyio.Event()
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Turns: {len(self._running)} running{', stopping' if self._stopping else ''}>"

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    @contextmanager
    def admit(self, session: AmplifierSession) -> Iterator[None]:
        """Count a turn inside the block; it begins with opening the session, if the turn opens one.

        Raises:
            Problem: There are too many, or the server is being stopped.
        """
        if self._stopping:
            raise Problem(503, "the server is being stopped", code="stopping", headers={"Retry-After": "5"})
        if len(self._running) >= self._limits.turns:
            message = f"{self._limits.turns} turns are running, which is the limit; try again later"
            raise Problem(429, message, code="too_many_turns", headers={"Retry-After": "1"})
        self._running.add(session)
        try:
            yield
        finally:
            self._running.discard(session)
            if not self._running:
                self._over.set()

    def begin_shutdown(self) -> None:
        """Admit no more turns, and ask those that run to end: after the running step, or when the time is over."""
        self._stopping = True
        for session in self._running:
            session.coordinator.cancellation.request_graceful(
                grace=self._limits.shutdown_seconds, reason="the server is being stopped"
            )

    async def wait_idle(self) -> None:
        """Wait until no turn runs."""
        while self._running:
            self._over = anyio.Event()
            await self._over.wait()

    @property
    def deadline(self) -> float:
        """Seconds for `wait_idle` after `begin_shutdown`: time for the turns, and for what they have to unwind."""
        return self._limits.shutdown_seconds + math.ceil(self._limits.shutdown_seconds / 2)
