"""The cleanup stack: the steps of the closing, run in reverse order, each under a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from inspect import isawaitable
from types import MethodType

import attrs

from amplifier.contracts.cancellation import (
    contained_failure,
    is_cancellation_type,
    is_real_cancellation,
    text_of,
)
from amplifier.errors import SpuriousCancellation

from .deadlines import DeadlinePassed, ReusableDeadline, TimeBudget
from .watchdog import Watchdog

logger: logging.Logger = logging.getLogger("amplifier.session")

MIN_SHARE = 0.1
"""Fraction of its deadline that each step keeps even if earlier steps are slow."""


@attrs.define(eq=False)
class CleanupEntry:
    """One step of the closing: a module's cleanup, or the end of one of its tasks."""

    run: Callable[[], object]
    module: str | None
    what: str = "cleanup"

    def __str__(self) -> str:
        return f"{self.what} of {self.module or 'the application'}"


@attrs.frozen
class CleanupFailure:
    """A step of the closing that failed or ran out of time.

    Attributes:
        what: The kind of step, such as "cleanup".
        module: The id of the module, or None for the application.
        error: The exception that the step raised.
        overran: True if the deadline of the step passed.
    """

    what: str
    module: str | None
    error: BaseException
    overran: bool

    def __str__(self) -> str:
        owner = self.module or "the application"
        return f"{self.what} of {owner}: {text_of(self.error) or type(self.error).__name__}"


class CleanupStack:
    """Registered steps of one session. The last one registered runs first, and each runs once.

    Attributes:
        ran: The steps of the latest closing, for ``session.last_stop``: the kind and owner of each,
            the seconds it took, and its failure.
    """

    __slots__ = ("_entries", "ran")

    def __init__(self) -> None:
        self._entries: dict[Hashable, CleanupEntry] = {}
        self.ran: list[tuple[str, str | None, float, CleanupFailure | None]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[CleanupEntry]:
        """The steps in order of registration."""
        return list(self._entries.values())

    def push(
        self, run: Callable[[], object], owner: str | None, what: str = "cleanup"
    ) -> CleanupEntry | None:
        """Add a step, unless its module has already added the same callable.

        A module may both register a cleanup and return it from ``mount``.
        """
        entry = CleanupEntry(run, owner, what)
        key = _key(entry)
        if key in self._entries:
            return None
        self._entries[key] = entry
        return entry

    def discard(self, entry: CleanupEntry | None) -> bool:
        """Remove a step that is no longer needed. Return whether it was there."""
        if entry is None or self._entries.get(_key(entry)) is not entry:
            return False
        # Deleting the last item would leave a hole that slows reverse iteration.
        if next(reversed(self._entries.values())) is entry:
            self._entries.popitem()
        else:
            del self._entries[_key(entry)]
        return True

    def move_up(self, entry: CleanupEntry | None) -> None:
        """Move a step so that it runs before all others."""
        if entry is not None and self.discard(entry):
            self._entries[_key(entry)] = entry

    async def unwind(
        self,
        failures: list[CleanupFailure],
        *,
        seconds: float | None,
        budget: TimeBudget,
        watch: Watchdog | None = None,
        owner: str | CleanupEntry | None = None,
    ) -> BaseException | None:
        """Run and remove steps. Collect the failed ones.

        Args:
            failures: Receives an entry for each failed step, including steps interrupted by
                KeyboardInterrupt.
            seconds: The deadline of one step.
            budget: The time budget for all steps together.
            watch: Reports steps that don't react to their cancellation.
            owner: Run only this module's steps, or this one step. None runs all.

        Returns:
            The first KeyboardInterrupt or exit, for the caller to raise.
        """
        interrupt: BaseException | None = None
        error: BaseException | None = None
        known = set(self._waiting(owner))
        if not known:
            return None
        full_share = 1.0 if seconds is None else seconds
        reserve = budget.reserve(MIN_SHARE * full_share, len(known))
        deadline = ReusableDeadline(watch)
        try:
            while (entry := next(self._waiting(owner), None)) is not None:
                self.discard(entry)
                began = time.monotonic()
                error = DeadlinePassed(0.0)
                # A step that another step has added runs only if time is left. Otherwise steps that
                # keep adding steps would never end.
                if entry in known or not budget.is_used_up:
                    known.discard(entry)
                    share = budget.share(seconds, len(known) + 1, reserve)
                    error = await _run_step(deadline, entry, share)
                failure = None
                if error is not None:
                    failure = _failure(entry, error)
                    failures.append(failure)
                    if not isinstance(error, Exception):
                        interrupt = interrupt or error
                    elif error.__cause__ is not None and is_real_cancellation(error.__cause__):
                        self._log_waiting(owner)
                if owner is None:
                    took = time.monotonic() - began
                    self.ran.append((entry.what, entry.module, took, failure))
            return interrupt
        finally:
            deadline.close()
            # The frames in the traceback of an error lead back to this one.
            del interrupt, error

    def _log_waiting(self, owner: str | CleanupEntry | None) -> None:
        """Log the remaining steps, because the loop may be stopped before they run."""
        names = ", ".join(map(str, self._waiting(owner)))
        if names:
            logger.warning("the event loop is ending; still to run: %s", names)

    def _waiting(self, owner: str | CleanupEntry | None) -> Iterator[CleanupEntry]:
        """Yield the steps of one module, one step, or all, in the order in which they run."""
        return (
            entry
            for entry in reversed(self._entries.values())
            if owner is None or owner is entry or owner == entry.module
        )


def _failure(entry: CleanupEntry, error: BaseException) -> CleanupFailure:
    overran = isinstance(error, DeadlinePassed)
    text = text_of(error) or type(error).__name__
    logger.error("%s failed: %s", entry, text, exc_info=None if overran else error)
    if not isinstance(error, Exception):
        # The session both keeps the record and raises the error. The traceback of the raised
        # exception leads to the session, so the record holds a copy. Otherwise there would be a
        # reference cycle.
        error = type(error)(*error.args)
    return CleanupFailure(entry.what, entry.module, error, overran)


async def _run_step(
    deadline: ReusableDeadline, entry: CleanupEntry, seconds: float | None
) -> BaseException | None:
    """Run one step and return what it raises, so that the others always run."""
    try:
        answer = entry.run()
        if isawaitable(answer):
            await deadline.run(_awaited(answer), seconds, entry)
    except BaseException as exc:  # noqa: BLE001 — foreign code
        return _failure_of_step(exc)
    return None


async def _awaited(cleanup: Awaitable[object]) -> None:
    await cleanup


def _failure_of_step(exc: BaseException) -> BaseException:
    """Return the failure that an exception from a cleanup stands for.

    The scopes around a cleanup are shielded, so a real cancellation means that an asyncio loop is
    ending, which cancels every task. A KeyboardInterrupt is raised when all steps have run.
    """
    if is_cancellation_type(exc):
        text = f"raised {type(exc).__name__} although nothing was cancelled"
        if is_real_cancellation(exc):
            text = "interrupted, because every task was cancelled, as at the end of the event loop"
        failure = SpuriousCancellation(text)
        failure.__cause__ = exc
        return failure
    try:
        return contained_failure(exc)
    except BaseException as interrupt:  # noqa: BLE001 — see above
        return interrupt
    finally:
        # Break the reference cycle with the traceback.
        del exc


def _key(entry: CleanupEntry) -> Hashable:
    """Return a key that is equal for two steps of one module with the same callable."""
    run, owner = entry.run, entry.module
    if owner is None:
        return entry
    # A bound method is a new object each time it is looked up.
    if isinstance(run, MethodType):
        return owner, id(run.__self__), run.__func__
    return owner, id(run)
