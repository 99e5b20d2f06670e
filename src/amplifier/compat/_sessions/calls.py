"""Deadlines around published code, and which of its BaseExceptions leave: the published kernel's rules, place by place.

Our own sessions contain everything but Ctrl-C and real cancellations (`amplifier.contracts.contained_failure`). The published kernel
runs what is async in tasks of its own, where asyncio lets SystemExit end the program, and contains the rest at some places only.
"""

from __future__ import annotations

from collections.abc import Callable

from amplifier.contracts._containment import is_cancellation_type
from amplifier.kernel.runtime.deadlines import DeadlineGroup, DeadlinePassed
from amplifier.kernel.runtime.watchdog import Watchdog

Passes = Callable[[BaseException], bool]


def is_exit(exc: BaseException) -> bool:
    """For handlers: an exit leaves, anything else is the handler's failure."""
    return isinstance(exc, SystemExit)


def is_fatal(exc: BaseException) -> bool:
    """For contributors and cleanups: everything leaves that is neither an Exception nor a cancellation that the code raised by itself."""
    return not isinstance(exc, Exception) and not is_cancellation_type(exc)


def is_no_exception(exc: BaseException) -> bool:
    """For approval systems and contexts: their callers get whatever they raise."""
    return not isinstance(exc, Exception)


class PublishedCalls(DeadlineGroup):
    """Calls of published code, one after another, each under its own deadline.

    Args:
        watch: As for `DeadlineGroup`.
        limit: As for `DeadlineGroup`.
        passes: Which exceptions leave as they are although the code itself raised them.
    """

    __slots__ = ("_passes",)

    def __init__(self, watch: Watchdog | None = None, limit: float | None = None, *, passes: Passes) -> None:
        super().__init__(watch, limit)
        self._passes = passes

    def judge(self, exc: BaseException, *, is_armed: bool = True) -> Exception:
        """What an exception out of the current call means; see `DeadlineGroup.judge`.

        Raises:
            BaseException: ``exc`` itself when it is not the call's to keep, or when ``passes`` lets it through.
        """
        failure = super().judge(exc, is_armed=is_armed)
        if failure is not exc and not isinstance(failure, DeadlinePassed) and self._passes(exc):
            raise exc
        return failure
