"""An open session that several tasks use: one task opens and closes it, others run its turns, one at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskStatus

from amplifier.errors import SessionBusyError
from amplifier.kernel import AmplifierSession

__all__ = ["LiveSession"]

logger: logging.Logger = logging.getLogger("amplifier.live_session")


class LiveSession:
    """A session that is open for as long as `run` runs.

    Args:
        session: Not opened yet.
    """

    def __init__(self, session: AmplifierSession) -> None:
        self.session = session
        self._leave = anyio.Event()
        self._closed = anyio.Event()
        self._idle: anyio.Event | None = None
        self._stopped = False

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "running a turn" if self.is_busy else "idle"
        return f"<LiveSession {self.session.session_id}: {state}>"

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running, or has been claimed."""
        return self._idle is not None

    @property
    def was_stopped(self) -> bool:
        """Whether `stop` was called since the latest turn was claimed."""
        return self._stopped

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
                await self.stop_and_wait()
        except Exception:
            if not is_open:
                raise
            logger.exception("session %r could not be closed properly", self.session.session_id)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Claim the session for one turn; the claim is made when the block is entered.

        Raises:
            SessionBusyError: Another turn is running, or the session is being closed.
        """
        self.claim()
        try:
            yield
        finally:
            self.release()

    def claim(self) -> None:
        """Claim the session for one turn, until `release`.

        Raises:
            SessionBusyError: Another turn is running, or the session is being closed.
        """
        if self._idle is not None:
            raise SessionBusyError(
                f"session {self.session.session_id!r} is running a turn; wait for its end or stop it"
            )
        if self._leave.is_set():
            raise SessionBusyError(f"session {self.session.session_id!r} is being closed")
        self._idle = anyio.Event()
        self._stopped = False
        self.session.coordinator.cancellation.reset()

    def release(self) -> None:
        """End the claim."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set()

    def stop(self, reason: str) -> bool:
        """Stop the running turn immediately; returns whether there was one."""
        if self._idle is None:
            return False
        self._stopped = True
        self.session.coordinator.cancellation.request_immediate(reason=reason)
        return True

    async def stop_and_wait(self) -> None:
        """Stop the running turn, if there is one, and wait until it has unwound."""
        if self._idle is not None:
            idle = self._idle
            self.stop("the session is being closed")
            await idle.wait()

    async def close(self) -> None:
        """End `run` and wait until the session is closed."""
        self._leave.set()
        await self._closed.wait()
