"""Blocking work in threads, which can be stopped and are limited in number and time."""

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

STOP_SECONDS = 1.0
"""Seconds that a cancelled call waits for its thread. The call must end within about a second."""


async def poll_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. The pauses between two checks grow."""
    pause = 0.001
    while not condition():
        await anyio.sleep(pause)
        pause = min(2 * pause, 0.02)


class Stopped(Exception):
    """Raised inside the thread at the first check after a stop was requested."""


class Stop:
    """A request to stop, which the thread checks between steps.

    Attributes:
        requested: True once the thread has to stop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.requested: bool = False

    def check(self) -> None:
        """Raise if a stop was requested.

        Raises:
            Stopped: A stop was requested.
        """
        if self.requested:
            raise Stopped

    def add(self, callback: Callable[[], None]) -> None:
        """Add a callback that interrupts a wait of the thread. Another thread calls it.

        If a stop was already requested, the callback is called at once.
        """
        with self._lock:
            self._callbacks.append(callback)
            late = self.requested
        if late:
            callback()

    def discard(self, callback: Callable[[], None]) -> None:
        """Remove a callback."""
        with self._lock:
            self._callbacks.remove(callback)

    def request(self) -> None:
        """Request the stop. This may be called from any thread, and again."""
        with self._lock:
            self.requested = True
            callbacks = tuple(self._callbacks)
        for callback in callbacks:
            callback()


# A thread can't be killed. So the work checks its `Stop` between steps, and a cancelled call
# requests the stop and waits for the work to end. The call waits under every kind of cancellation.
# A plain ``run_sync`` doesn't wait after asyncio's native cancellation.
#
# Nothing can interrupt work that hangs in a single system call, for example on a dead network
# mount. The call waits for a moment and reports the work in the log. The work undoes its changes
# once the system call returns.


class Workers:
    """The threads of one mounted module.

    Args:
        threads: Maximum number of threads that work at the same time.
        timeout: Seconds for one piece of work, including the wait for a free thread.
    """

    def __init__(self, *, threads: int = 4, timeout: float = 30.0) -> None:
        self._limiter = anyio.CapacityLimiter(threads)
        self._timeout = timeout

    async def run(self, work: Callable[[Stop], _Result], *, label: str) -> _Result:
        """Do blocking work in a thread, and return or raise once the thread has finished it.

        Args:
            work: Receives the `Stop` that it has to check between steps.
            label: The tool and the subject of the work, for reports.

        Raises:
            ToolFailure: The time ran out.
        """
        stop, future = Stop(), Future[_Result]()

        def job() -> None:
            # The call may have ended before a thread was free.
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(stop))
            # The error is raised in the caller's thread.
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)

        with anyio.move_on_after(self._timeout) as scope:
            try:
                await anyio.to_thread.run_sync(job, abandon_on_cancel=True, limiter=self._limiter)
            finally:
                # This affects only work that has not started yet, which then never starts.
                future.cancel()
                if not future.done():
                    stop.request()
                    # The thread may outlive the event loop, so it must not need to wake the loop.
                    with anyio.move_on_after(STOP_SECONDS, shield=True):
                        await poll_until(future.done)
                if not future.done():
                    logger.warning(
                        "%s: the thread hangs in a system call and was left behind; "
                        "it stops once the call returns",
                        label,
                    )
        has_ended = future.done() and not future.cancelled()
        if has_ended and (future.exception() is None or not scope.cancelled_caught):
            return future.result()
        raise ToolFailure("Timeout", f"{label}: timed out after {self._timeout:g} s")
