"""Closing a session: its turn, ``session:end``, all cleanups in reverse order, and reports."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

from amplifier.contracts.cancellation import is_cancellation_type
from amplifier.events import CLEANUP_FAILED, SESSION_END
from amplifier.models import SessionStatus

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.cancellation import CancellationToken
from ..runtime.child import ki_protected
from ..runtime.cleanup import CleanupFailure
from ..runtime.deadlines import DeadlinePassed, failure_text
from ..runtime.frames import WaitInfo, forget_frames
from .lifecycle import Lifecycle, State, inside_closing_of
from .opening import ModuleFailure, release_loader

logger: logging.Logger = logging.getLogger("amplifier.session")


class Closing:
    """One closing of a session.

    The closing runs in a shielded child task if there is foreign code to call. All its steps share
    the time ``deadlines.teardown``, including observers of failures.

    Args:
        coordinator: The coordinator of the session.
        lifecycle: The state of the session.
        status: The status record of the session.
        mount_failures: Modules that could not be used.
        parent: The token of the session that this one was forked from, or None.
        was_open: False if the opening failed. In this case no end is announced.

    Attributes:
        failures: Steps that failed or ran out of time.
    """

    def __init__(
        self,
        coordinator: ModuleCoordinator,
        lifecycle: Lifecycle,
        status: SessionStatus,
        mount_failures: list[ModuleFailure],
        parent: CancellationToken | None,
        *,
        was_open: bool,
    ) -> None:
        self._coordinator = coordinator
        self._lifecycle = lifecycle
        self._status = status
        self._mount_failures = mount_failures
        self._parent = parent
        self._was_open = was_open
        self._interrupt: BaseException | None = None
        self.failures: list[CleanupFailure] = []
        self._coordinator.cleanups.ran.clear()
        self._budget = self._coordinator.begin_closing()

    def wait_info(self) -> WaitInfo:
        """Describe the closing for reports about sessions that hang."""
        return WaitInfo(coordinator=self._coordinator, label="closing")

    def calls_foreign_code(self) -> bool:
        """Return whether a step calls code from outside the kernel.

        If none does, the closing awaits nothing, so no cancellation can reach it, and it needs no
        child task.
        """
        coordinator = self._coordinator
        return bool(
            coordinator.cleanups
            or self._lifecycle.turn is not None
            or coordinator.cancellation.has_requests
            or coordinator.hooks.has_handlers(SESSION_END)
        )

    @ki_protected
    async def close(self) -> None:
        """Run all steps, even if some fail.

        Raises:
            KeyboardInterrupt: It hit a step. The other steps have run.
        """
        token = inside_closing_of.set((*inside_closing_of.get(), self._lifecycle))
        announcements = [self._announce_requests, self._announce_end] if self._was_open else []
        steps = [
            self._end_turn,
            *announcements,
            self._unwind,
            self._report_failures,
            # Observers of failures may register more cleanups, so `_unwind` runs again.
            self._unwind,
        ]
        for step in steps:
            await self._attempt(step, step.__name__)
        inside_closing_of.reset(token)
        self._release()
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                # Break the reference cycle with the traceback.
                del interrupt

    async def _attempt(self, step: Callable[[], Awaitable[object]], name: str) -> None:
        """Run one step. An exception is logged, and an interrupt is kept for the end."""
        try:
            await step()
        except Exception:
            session_id = self._coordinator.session_id
            logger.exception("session %r failed to close: %s", session_id, _in_words(name))
        except BaseException as exc:  # noqa: BLE001 — the other steps must run
            if is_cancellation_type(exc):
                # Nothing else can cancel a shielded child: neither scopes around the session nor
                # native cancellations of the task that closes it.
                logger.warning(
                    "session %r was interrupted while it closed (%s): every task was cancelled, "
                    "as at the end of the event loop",
                    self._coordinator.session_id,
                    _in_words(name),
                )
            else:
                self._interrupt = self._interrupt or exc

    async def _end_turn(self) -> None:
        """Cancel the running turn and wait for it. No turn may write to a closed session."""
        coordinator, turn = self._coordinator, self._lifecycle.turn
        if turn is not None:
            seconds = self._budget.half(math.inf)
            began, failure = time.monotonic(), None
            if not await turn.cancel_and_wait(seconds):
                logger.error(
                    "a turn of session %r does not end although it was cancelled; the session is "
                    "closed without waiting for it",
                    coordinator.session_id,
                )
                failure = CleanupFailure("turn", None, DeadlinePassed(seconds), True)
                self.failures.append(failure)
            took = time.monotonic() - began
            coordinator.cleanups.ran.append(("turn", None, took, failure))
        coordinator.cancellation.stop_children("the session it was forked from was closed")

    async def _announce_requests(self) -> None:
        """Announce requests to stop that were made while no turn was running."""
        if self._status.status == "running":
            self._status.status = "completed"
        await self._coordinator.cancellation.announce_requests(self._coordinator.hooks.emit)

    async def _announce_end(self) -> None:
        coordinator = self._coordinator
        if coordinator.hooks.has_handlers(SESSION_END):
            details = {"session_id": coordinator.session_id, "status": self._status.status}
            await coordinator.hooks.emit(SESSION_END, details)

    async def _unwind(self) -> None:
        if self._coordinator.cleanups:
            interrupt = await self._coordinator.unwind(self.failures, self._budget)
            self._interrupt = self._interrupt or interrupt
            # Break the reference cycle with the traceback.
            del interrupt

    async def _report_failures(self) -> None:
        self._coordinator.refuse_work()
        for failure in self.failures:
            details: dict[str, object] = {
                "module_id": failure.module,
                "cleanup": failure.what,
                "error": failure_text(failure.error),
                "error_type": type(failure.error).__name__,
                "abandoned": failure.overran,
            }
            if isinstance(failure.error, DeadlinePassed):
                details["seconds"] = failure.error.seconds
            report = partial(self._coordinator.hooks.emit, CLEANUP_FAILED, details)
            await self._attempt(report, f"report of {failure.what}")

    def _release(self) -> None:
        """Release resources outside the session, and mark the session as closed."""
        self._coordinator.end_closing()
        if self._parent is not None:
            self._parent.unregister_child(self._coordinator.cancellation)
        self._status.ended_at = datetime.now(UTC)
        try:
            release_loader(self._coordinator)
        except BaseException as exc:  # noqa: BLE001 — an interrupt in the loader
            self._interrupt = self._interrupt or exc
        if self._was_open:
            forget_frames([failure.error for failure in self._mount_failures])
            forget_frames([failure.error for failure in self.failures])
        self._lifecycle.settle(State.CLOSED)


def _in_words(step: str) -> str:
    """Return the description of a step for the log."""
    return step.strip("_").replace("_", " ")
