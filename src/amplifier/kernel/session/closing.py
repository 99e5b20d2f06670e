"""Closing a session: the running turn, ``session:end``, every cleanup in reverse, and reports of those that failed.

One clock, ``deadlines.teardown``, is shared by everything that happens here, observers included.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from amplifier._json import redact_text
from amplifier.contracts._containment import text_of
from amplifier.events import CLEANUP_FAILED, SESSION_END
from amplifier.models import SessionStatus

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.cleanup_stack import CleanupFailure
from ..runtime.deadlines import DeadlinePassed, TimeBudget
from ..runtime.running_call import RunningCall
from .turn import TurnRunner

logger: logging.Logger = logging.getLogger("amplifier.session")


class Closing:
    """One closing; runs inside a shielded section.

    Attributes:
        failures: Cleanups that failed or were cut off.
    """

    __slots__ = ("_coordinator", "_interrupt", "_status", "_turns", "failures")

    def __init__(self, coordinator: ModuleCoordinator, turns: TurnRunner, status: SessionStatus) -> None:
        self._coordinator = coordinator
        self._turns = turns
        self._status = status
        self._interrupt: BaseException | None = None
        self.failures: list[CleanupFailure] = []

    def running_call(self) -> RunningCall:
        """Whose closing this is."""
        return RunningCall(coordinator=self._coordinator, label="closing")

    async def run(self, *, was_open: bool) -> None:
        """End everything.

        Raises:
            BaseException: The first Ctrl-C that arrived meanwhile, after everything has run.
        """
        budget = self._coordinator.begin_closing()
        await self._turns.end_running_turn()
        self._coordinator.cancellation.stop_children("the session it was forked from was closed")
        if was_open:
            await self._announce_end()
        await self._unwind(budget)
        self._coordinator.refuse_work()
        for failure in list(self.failures):
            await self._announce_failure(failure)
        await self._unwind(budget)  # what observers have registered meanwhile
        if self._interrupt is not None:
            raise self._interrupt

    async def _unwind(self, budget: TimeBudget) -> None:
        failures, interrupt = await self._coordinator.unwind(budget)
        self.failures += failures
        self._interrupt = self._interrupt or interrupt

    async def _announce_end(self) -> None:
        if self._status.status == "running":
            self._status.status = "completed"
        await self._announce(self._turns.announce_requests)  # of a stop that met no turn
        details = {"session_id": self._coordinator.session_id, "status": self._status.status}
        await self._announce(self._coordinator.hooks.emit, SESSION_END, details)

    async def _announce_failure(self, failure: CleanupFailure) -> None:
        details: dict[str, Any] = {
            "module_id": failure.module,
            "cleanup": failure.what,
            "error": redact_text(text_of(failure.error)),
            "error_type": type(failure.error).__name__,
            "abandoned": failure.overran,
        }
        if isinstance(failure.error, DeadlinePassed):
            details["seconds"] = failure.error.seconds
        await self._announce(self._coordinator.hooks.emit, CLEANUP_FAILED, details)

    async def _announce(self, announce: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Inform the hooks; a Ctrl-C that hits one is kept, for the rest must run."""
        try:
            await announce(*args)
        except Exception:
            what = args[0] if args else "a request to stop"
            logger.exception("session %r could not announce %s", self._coordinator.session_id, what)
        except BaseException as exc:  # noqa: BLE001 — raised when everything has been closed
            self._interrupt = self._interrupt or exc
