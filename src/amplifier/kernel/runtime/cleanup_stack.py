"""The cleanup stack: what came last goes first; each step bounded, failures named and collected, the rest always runs.

Runs inside a shielded section of the session's. Entries are cleanup callables of modules and the stopping of host tasks alike, so
their order is one order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from inspect import isawaitable
from types import MethodType
from typing import Any

import attrs

from amplifier.contracts._containment import contained_failure, is_cancellation_type, text_of
from amplifier.errors import SpuriousCancellation

from .deadlines import DeadlineGroup, DeadlinePassed, TimeBudget
from .watchdog import Watchdog

logger: logging.Logger = logging.getLogger("amplifier.session")

LEAST_SHARE = 0.1
"""The part of its own deadline that is kept for each cleanup while those before it take long."""


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
        return f"{self.what} of {self.module or 'the application'}: {text_of(self.error) or type(self.error).__name__}"


class CleanupStack:
    """Registered steps of one session, run once and in reverse."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Hashable, CleanupEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[CleanupEntry]:
        """The steps in the order in which they were registered."""
        return list(self._entries.values())

    def push(self, run: Callable[[], Any], owner: str | None, what: str = "cleanup") -> CleanupEntry | None:
        """Add a step, unless the same module pushed the same callable already (returned *and* registered)."""
        entry = CleanupEntry(run, owner, what)
        key = _key(entry)
        if key in self._entries:
            return None
        self._entries[key] = entry
        return entry

    def discard(self, entry: CleanupEntry) -> None:
        """Forget a step that has become unnecessary."""
        key = _key(entry)
        if self._entries.get(key) is entry:
            del self._entries[key]

    async def run_now(self, entry: CleanupEntry, seconds: float | None, watch: Watchdog | None) -> None:
        """Run one step before its turn, if it has not run yet; its failure is logged.

        Raises:
            BaseException: Ctrl-C out of it.
        """
        if self._entries.get(_key(entry)) is not entry:
            return
        self.discard(entry)
        with DeadlineGroup(watch) as calls:
            error = await _run_step(calls, entry, seconds)
        if error is not None:
            _failure(entry, error)
            if not isinstance(error, Exception):
                raise error

    async def unwind(
        self, *, each: float | None, budget: TimeBudget, watch: Watchdog | None = None, owner: str | None = None
    ) -> tuple[list[CleanupFailure], BaseException | None]:
        """Run and drop all steps, or those of one module.

        Returns:
            What failed, and the first exception that the caller must re-raise (Ctrl-C).
        """
        failures: list[CleanupFailure] = []
        fatal: BaseException | None = None
        steps = self._count(owner)
        if not steps:
            return failures, fatal
        known = set(self._entries.values())
        reserve = budget.reserve(LEAST_SHARE * (1.0 if each is None else each), steps)
        with DeadlineGroup(watch) as calls:
            while (entry := self._take(owner)) is not None:
                if budget.is_used_up and entry not in known:
                    failures.append(_failure(entry, DeadlinePassed(0.0)))  # or steps that add steps would never end
                    continue
                seconds = budget.share(each, self._count(owner) + 1, reserve)
                error = await _run_step(calls, entry, seconds)
                if error is None:
                    continue
                failures.append(_failure(entry, error))
                if not isinstance(error, Exception):
                    fatal = fatal or error
        return failures, fatal

    def _take(self, owner: str | None) -> CleanupEntry | None:
        for key, entry in reversed(self._entries.items()):
            if owner is None or entry.owner == owner:
                del self._entries[key]
                return entry
        return None

    def _count(self, owner: str | None) -> int:
        return len(self._entries) if owner is None else sum(e.owner == owner for e in self._entries.values())


def _failure(entry: CleanupEntry, error: BaseException) -> CleanupFailure:
    cut_off = isinstance(error, DeadlinePassed)
    logger.error("%s failed: %s", entry, text_of(error) or type(error).__name__, exc_info=None if cut_off else error)
    return CleanupFailure(entry.what, entry.owner, error, cut_off)


async def _run_step(calls: DeadlineGroup, entry: CleanupEntry, seconds: float | None) -> BaseException | None:
    """Run one step; whatever it raises is returned: nothing may keep the rest from running."""
    try:
        answer = entry.run()
        if isawaitable(answer):
            await calls.run(answer, seconds, entry)
    except BaseException as exc:  # noqa: BLE001 — foreign code, and see above
        return _judged(exc)
    return None


def _judged(exc: BaseException) -> BaseException:
    """The failure of a cleanup, or the Ctrl-C that happened to hit it; in a shielded section no cancellation is real."""
    if is_cancellation_type(exc):
        failure = SpuriousCancellation(f"raised {type(exc).__name__} although nothing was cancelled")
        failure.__cause__ = exc
        return failure
    try:
        return contained_failure(exc)
    except BaseException as passing:  # noqa: BLE001 — raised when all cleanups have run
        return passing


def _key(entry: CleanupEntry) -> Hashable:
    """Equal for two steps of one module with the same callable; a bound method is a new object each time it is looked up."""
    run, owner = entry.run, entry.owner
    if owner is None:
        return entry
    if type(run) is MethodType:
        return owner, id(run.__self__), run.__func__
    return owner, id(run)
