"""Blocking work in threads that can be asked to stop, bounded in number and in time.

A thread cannot be killed. So the work asks its `Stop` between steps, and a cancelled call requests the stop and then waits
for it, under every kind of cancellation including asyncio's native one, against which a plain ``run_sync`` does not hold.
Work that hangs in one system call (a dead network mount) is waited for only a moment and then named in the log: nothing
can end it, and it undoes its own work once the call returns.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from .failure import ToolFailure

logger = logging.getLogger("amplifier.modules.tools")

_Result = TypeVar("_Result")

PATIENCE = 1.0
"""Seconds a cancelled call waits for its thread: a cancelled call has to end within about one."""


async def poll_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that nothing reports, checking less and less often."""
    pause = 0.001
    while not condition():
        await anyio.sleep(pause)
        pause = min(2 * pause, 0.02)


class Stopped(Exception):
    """Raised inside the thread, at the first check after a stop was requested."""


class Stop:
    """A request to stop, which the thread checks between steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.requested = False

    def check(self) -> None:
        """End the work if a stop was requested.

        Raises:
            Stopped: A stop was requested.
        """
        if self.requested:
            raise Stopped

    def add(self, callback: Callable[[], None]) -> None:
        """Have something called, from another thread, that ends a wait of this one; at once if it is time already."""
        with self._lock:
            self._callbacks.append(callback)
            late = self.requested
        if late:
            callback()

    def discard(self, callback: Callable[[], None]) -> None:
        """Take a callback back."""
        with self._lock:
            self._callbacks.remove(callback)

    def request(self) -> None:
        """Ask for the end; safe in any thread, more than once."""
        with self._lock:
            self.requested = True
            callbacks = tuple(self._callbacks)
        for callback in callbacks:
            callback()


class _Job(Generic[_Result]):
    """One piece of work and how it ended; begun at most once, and not at all after `give_up`."""

    def __init__(self, work: Callable[[Stop], _Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._begun = False
        self.stop = Stop()
        self.over = False
        self.results: list[_Result] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        with self._lock:
            if self.over:
                return
            self._begun = True
        try:
            self.results.append(self._work(self.stop))
        except BaseException as error:  # noqa: BLE001 - carried to the caller, who raises it in his own thread
            self.error = error
        finally:
            self.over = True

    def give_up(self) -> None:
        with self._lock:
            self.over = self.over or not self._begun
        self.stop.request()

    async def wait(self, what: str) -> None:
        """Wait until the thread has finished, under every cancellation, for at most `PATIENCE`."""
        with anyio.move_on_after(PATIENCE, shield=True):
            # Polling needs nothing of the thread, which may outlive the event loop that it would have to wake.
            await poll_until(lambda: self.over)
        if not self.over:
            logger.warning("%s: the thread hangs in a system call; it was asked to stop and left behind", what)


class Workers:
    """The threads of one mounted module.

    Args:
        threads: How many may work at the same time.
        timeout: Seconds for one piece of work, waiting for a free thread included.
    """

    def __init__(self, *, threads: int = 4, timeout: float = 30.0) -> None:
        self._limiter = anyio.CapacityLimiter(threads)
        self._timeout = timeout

    async def run(self, work: Callable[[Stop], _Result], *, what: str) -> _Result:
        """Do blocking work in a thread; when this returns or raises, the thread is done with it.

        Args:
            work: Called with the `Stop` it has to look at between steps.
            what: For reports: the tool and its subject.

        Raises:
            ToolFailure: The time was up.
        """
        job = _Job(work)
        with anyio.move_on_after(self._timeout) as scope:
            try:
                await anyio.to_thread.run_sync(job.run, abandon_on_cancel=True, limiter=self._limiter)
            finally:
                if not job.over:
                    job.give_up()
                    await job.wait(what)
        if job.results:
            return job.results[0]
        if scope.cancelled_caught or job.error is None:
            raise ToolFailure("Timeout", f"{what}: not finished after {self._timeout:g} s, and stopped")
        raise job.error
