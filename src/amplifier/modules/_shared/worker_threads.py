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
from concurrent.futures import Future
from typing import TypeVar

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
        self.requested: bool = False

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
        stop, future = Stop(), Future[_Result]()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return  # given up before it began
            try:
                future.set_result(work(stop))
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                future.set_exception(error)

        with anyio.move_on_after(self._timeout) as scope:
            try:
                await anyio.to_thread.run_sync(job, abandon_on_cancel=True, limiter=self._limiter)
            finally:
                future.cancel()  # has an effect only on a job that has not begun, and then it never does
                if not future.done():
                    stop.request()
                    with anyio.move_on_after(PATIENCE, shield=True):
                        # Polling needs nothing of the thread, which may outlive the event loop that it would have to wake.
                        await poll_until(future.done)
                if not future.done():
                    logger.warning(
                        "%s: the thread hangs in a system call; it was asked to stop and left behind",
                        what,
                    )
        has_ended = future.done() and not future.cancelled()
        if has_ended and (future.exception() is None or not scope.cancelled_caught):
            return future.result()
        raise ToolFailure("Timeout", f"{what}: not finished after {self._timeout:g} s, and stopped")
