"""The cleanup stack: what came last goes first; each step bounded, failures named and collected, the rest always runs.

Runs inside a shielded section of the session's. Entries are cleanup callables of modules and the stopping of host tasks alike, so
their order is one order. Sits on `deadlines`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from inspect import isawaitable
from types import MethodType
from typing import Any

import attrs

from amplifier.contracts._containment import is_cancellation_type, is_real_cancellation
from amplifier.errors import SpuriousCancellation

from .deadlines import DeadlineGroup, DeadlinePassed
from .watchdog import Watchdog

logger = logging.getLogger("amplifier.session")

LEAST_SHARE = 0.1
"""When the closing as a whole has run out of time, each remaining cleanup still gets this part of its own deadline."""


@attrs.define(eq=False)
class CleanupEntry:
    """One step of the closing."""

    run: Callable[[], Any]
    owner: str | None
    what: str = "cleanup"

    def __str__(self) -> str:
        return f"{self.what} of {self.owner or 'the application'}"


@attrs.frozen
class CleanupFailure:
    """A step that failed or was cut off: which, whose, and why."""

    what: str
    module: str | None
    error: BaseException
    overran: bool

    def __str__(self) -> str:
        return f"{self.what} of {self.module or 'the application'}: {str(self.error) or type(self.error).__name__}"


class CleanupStack:
    """Registered steps of one session, run once and in reverse."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[CleanupEntry] = []

    def push(self, run: Callable[[], Any], owner: str | None, what: str = "cleanup") -> CleanupEntry | None:
        """Add a step, unless the same module pushed the same callable already (returned *and* registered)."""
        if owner is not None and any(e.owner == owner and _is_same(e.run, run) for e in self.entries):
            return None
        entry = CleanupEntry(run, owner, what)
        self.entries.append(entry)
        return entry

    def discard(self, entry: CleanupEntry) -> None:
        """Forget a step that has become unnecessary."""
        if entry in self.entries:
            self.entries.remove(entry)

    async def unwind(
        self,
        *,
        each: float | None,
        total: float | None,
        watch: Watchdog | None = None,
        owner: str | None = None,
    ) -> tuple[list[CleanupFailure], BaseException | None]:
        """Run and drop all steps, or those of one module.

        Returns:
            What failed, and the first exception that the caller must re-raise (Ctrl-C, exit).
        """
        failures: list[CleanupFailure] = []
        fatal: BaseException | None = None
        series = DeadlineGroup(watch)
        ends = math.inf if total is None else series.clock() + total
        try:
            while entry := self._take(owner):
                try:
                    answer = entry.run()
                    if isawaitable(answer):
                        await series.run(answer, _share(each, ends - series.clock()), entry)
                except BaseException as exc:  # foreign code; nothing may keep the rest from running
                    if not isinstance(exc, Exception):
                        exc_or_fatal = _contained(exc)
                        if exc_or_fatal is None:
                            fatal = fatal or exc
                            continue
                        exc = exc_or_fatal
                    failures.append(CleanupFailure(entry.what, entry.owner, exc, isinstance(exc, DeadlinePassed)))
                    logger.error("%s failed: %s", entry, exc, exc_info=None if isinstance(exc, DeadlinePassed) else exc)
        finally:
            series.close()
        return failures, fatal

    def _take(self, owner: str | None) -> CleanupEntry | None:
        for index in range(len(self.entries) - 1, -1, -1):
            if owner is None or self.entries[index].owner == owner:
                return self.entries.pop(index)
        return None


def _is_same(one: Callable[[], Any], other: Callable[[], Any]) -> bool:
    """The same callable; a bound method is a new object each time it is looked up."""
    return one is other or (type(one) is MethodType and type(other) is MethodType and one == other)


def _share(each: float | None, left: float) -> float | None:
    if each is None:
        return None if left == math.inf else max(left, 1.0)
    return max(min(each, left), each * LEAST_SHARE)


def _contained(exc: BaseException) -> Exception | None:
    """A cancellation that a cleanup made up is its failure; anything else of that rank must be re-raised."""
    if is_cancellation_type(exc) and not is_real_cancellation(exc):
        return SpuriousCancellation(f"raised {type(exc).__name__} although nobody cancelled it")
    return None
