"""What is reported about modules while a session runs: tasks that crashed, calls that refuse to be cancelled."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Protocol

from amplifier._json import redact_text
from amplifier.contracts._containment import text_of
from amplifier.events import MODULE_CRASHED, MODULE_UNRESPONSIVE
from amplifier.plan import Deadlines

from ..hooks.dispatch import Registration
from ..hooks.registry import HookRegistry
from ..runtime.cleanup_stack import CleanupEntry
from ..runtime.sections import run_section
from ..runtime.task_host import PATIENCE, TaskHost
from ..runtime.watchdog import Unresponsive
from .contributions import Contributor

logger: logging.Logger = logging.getLogger("amplifier.coordinator")


class _ReportedCoordinator(Protocol):
    """The part of the coordinator that reports use."""

    deadlines: Deadlines
    hosting: TaskHost

    @property
    def hooks(self) -> HookRegistry: ...


class Reports:
    """The reports of one session.

    Held by parts of the coordinator that must not keep it alive, or they would all go with the garbage collector only; so it
    refers to the coordinator weakly, and does nothing once that is gone.
    """

    __slots__ = ("__weakref__", "_coordinator")

    def __init__(self, coordinator: _ReportedCoordinator) -> None:
        self._coordinator = weakref.ref(coordinator)

    @property
    def coordinator(self) -> _ReportedCoordinator | None:
        """Whose modules these reports are about."""
        return self._coordinator()

    def patience(self) -> float:
        """How long the session's tasks wait for it to close when the event loop ends."""
        coordinator = self.coordinator
        teardown = None if coordinator is None else coordinator.deadlines.teardown
        return PATIENCE if teardown is None else teardown

    async def crash(self, module: str | None, task: str, error: BaseException, fatal: bool) -> None:
        """Emit ``module:crashed``."""
        if (coordinator := self.coordinator) is not None:
            details = {
                "module_id": module,
                "task": task,
                "error": redact_text(text_of(error)),
                "error_type": type(error).__name__,
                "fatal": fatal,
            }
            await coordinator.hooks.emit(MODULE_CRASHED, details)

    def unresponsive(self, report: Unresponsive) -> None:
        """Log a call that goes on after its deadline and emit ``module:unresponsive``."""
        module, operation = describe_label(report.label)
        logger.error(
            "%s does not answer to its cancellation: it had %g s and is %.0f s over; task %r waits at %s",
            operation,
            report.seconds,
            report.overdue,
            report.task,
            report.where,
        )
        coordinator = self.coordinator
        if coordinator is None or not coordinator.hosting.takes_work:
            return
        details = {
            "module_id": module,
            "operation": operation,
            "task": report.task,
            "awaiting": report.where,
            "seconds": report.seconds,
        }
        emit = coordinator.hooks.emit

        async def announce() -> None:
            await run_section(emit, MODULE_UNRESPONSIVE, details, name="amplifier module:unresponsive", shield=True)

        coordinator.hosting.spawn(announce)


def describe_label(label: Any) -> tuple[str | None, str]:
    """Module and words for what a deadline was about."""
    if isinstance(label, Registration):
        return label.module, str(label)
    if isinstance(label, Contributor | CleanupEntry):
        return label.owner, str(label)
    return None, str(label)
