"""Deadlines for third-party code, and the classification of its failures."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import anyio
import attrs

from amplifier._internal.json import redact_text
from amplifier.contracts.cancellation import (
    cancel_scope,
    contained_failure,
    current_time,
    is_cancellation_type,
    is_real_cancellation,
    loop_clock,
    text_of,
)

from .child import ki_protected
from .frames import WaitInfo, location_of_raise
from .watchdog import Watchdog

T = TypeVar("T")
P = ParamSpec("P")

TOLERANCE = 0.01
"""Fraction of its time by which a call may be cancelled too early.

Moving the deadline of a scope costs more than most calls. So the deadline stays in place for a call
that is due only slightly later.
"""


class DeadlinePassed(Exception):
    """A call was cancelled at its deadline, or returned after it.

    This exception stays inside the kernel, which translates it for reports.

    Attributes:
        seconds: The time that the call had.
        where: The await at which it was cancelled, as ``file:line in function``. None if the call
            returned late.
        has_answer: True if the call returned late.
        answer: The late result.
    """

    def __init__(self, seconds: float, where: str | None = None) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds
        self.where = where
        self.has_answer = False
        self.answer: object = None


def call_foreign(fn: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Call third-party code that may be sync. Its own failure propagates as an ``Exception``."""
    try:
        return fn(*args, **options)
    except BaseException as exc:  # noqa: BLE001 — raised again, as itself or contained
        failure = contained_failure(exc)
        try:
            if failure is exc:
                raise
            raise failure from exc
        finally:
            # Break the reference cycle with the traceback.
            del failure


def failure_text(error: BaseException) -> str:
    """Return the text of an exception without secrets.

    The text goes into events, to applications and, as the reason for a denial, to the model.
    """
    return redact_text(text_of(error))


def failure_words(error: BaseException) -> str:
    """Like failure_text(), prefixed with the exception type."""
    if isinstance(error, DeadlinePassed):
        return str(error)
    return f"{type(error).__name__}: {failure_text(error)}"


async def run_bounded(
    awaitable: Awaitable[T], seconds: float | None, label: object, watch: Watchdog | None
) -> T:
    """Await one call into third-party code under a deadline.

    Raises:
        DeadlinePassed: The deadline passed.
        Exception: The failure of the call, contained.
    """
    deadline = ReusableDeadline(watch)
    try:
        return await deadline.run(awaitable, seconds, label)
    finally:
        deadline.close()


# Successive calls share one cancel scope and move its deadline. A fresh scope for each call costs
# two to four times as much. The scope is opened when the first call returns an awaitable, so calls
# to sync code need none.


class ReusableDeadline:
    """Runs successive calls into third-party code, each under its own deadline.

    Dispatch, which is on the hot path, does the steps of `run` itself: `arm`, await, and
    `classify_exception`.

    Attributes:
        clock: The clock of the running loop.
        until: The deadline of the current call, by the loop's clock.
        started: The time at which the current call started.
        label: The kernel object that the call is made for, or a text that describes the call.
        awaited: The awaitable of the current call, or None between calls.
        scope: The shared scope, or None while it isn't open.
        limit: The latest deadline that any call gets.
    """

    __slots__ = (
        "_armed_for",
        "_seconds",
        "_watch",
        "awaited",
        "clock",
        "label",
        "limit",
        "scope",
        "started",
        "until",
    )

    def __init__(self, watch: Watchdog | None = None, limit: float | None = None) -> None:
        self.clock: Callable[[], float] = loop_clock()
        self.until: float = math.inf
        self.started: float = 0.0
        self.label: object = None
        self.awaited: object = None
        self.scope: anyio.CancelScope | None = None
        self._armed_for = math.inf
        self._seconds = math.inf
        self._watch = watch
        self.limit: float = math.inf if limit is None else self.clock() + limit

    async def run(self, awaitable: Awaitable[T], seconds: float | None, label: object) -> T:
        """Await one call. After a success, the scope stays open for the next call.

        Raises:
            DeadlinePassed: The deadline passed.
            Exception: The failure of the call, contained.
        """
        self.label = label
        failure: BaseException | None = None
        try:
            self.arm(seconds, self.clock(), awaitable)
            value = await awaitable
            if self.clock() >= self.until:
                late = self.reset_expired()
                late.has_answer, late.answer = True, value
                failure = late
                raise failure
            return value
        except BaseException as exc:
            try:
                failure = failure or self.classify_exception(exc)
            finally:
                # The caller's reaction to a failure isn't part of the call and its deadline.
                self.close()
            if failure is exc:
                raise
            raise failure from (None if isinstance(failure, DeadlinePassed) else exc)
        finally:
            self.awaited = None
            # Break the reference cycle with the traceback.
            del failure

    @ki_protected
    def arm(self, seconds: float | None, now: float, awaited: object) -> None:
        """Give the next call ``seconds`` from ``now``."""
        self.started = now
        self.awaited = awaited
        self._seconds = math.inf if seconds is None else seconds
        until = now + self._seconds
        if until > self.limit:
            until = self.limit
            self._seconds = max(until - now, 0.0)
        if self.scope is None:
            self.until = until
            self._armed_for = self._seconds
            self.scope = cancel_scope(until)
            self.scope.__enter__()
            if self._watch is not None:
                self._watch.enter(self)
            return
        tolerance = min(self._armed_for, self._seconds) * TOLERANCE
        if not self.until <= until <= self.until + tolerance:
            if self._watch is not None and until < self.until:
                self._watch.hasten(until)
            self.until = self.scope.deadline = until
            self._armed_for = self._seconds

    def tighten(self, until: float) -> None:
        """End the current call, and all that follow, at ``until`` at the latest."""
        self.limit = min(self.limit, until)
        if until < self.until and self.scope is not None:
            self.until = self.scope.deadline = until
            self._seconds = max(until - self.started, 0.0)

    def classify_exception(self, exc: BaseException, *, is_armed: bool = True) -> Exception:
        """Return the failure that an exception from the current call stands for.

        Args:
            exc: The exception.
            is_armed: True if `arm` was called for the call. Otherwise it had nothing to await, so
                neither a deadline nor a cancellation can have reached it.

        Returns:
            `DeadlinePassed` if the deadline cancelled the call, otherwise the call's own
            failure, contained.

        Raises:
            BaseException: ``exc`` itself if it isn't the call's own, such as a real cancellation
                or a KeyboardInterrupt.
        """
        try:
            late = self._expired(exc) if is_armed else None
            return late or contained_failure(exc, can_wait=is_armed)
        finally:
            # Break the reference cycle with the traceback.
            del exc

    @ki_protected
    def _expired(self, exc: BaseException) -> DeadlinePassed | None:
        if self.scope is None or not self.scope.cancel_called:
            return None
        where = location_of_raise(exc)
        scope, self.scope = self.scope, None
        try:
            is_ours = scope.__exit__(type(exc), exc, exc.__traceback__)
        except BaseException as rest:
            # Trio raises the errors that were in a group together with its Cancelled.
            if not isinstance(rest, Exception):
                raise
            is_ours = True
        self.close()
        # The call may react to its cancellation with an error, or raise a cancellation of its own
        # making.
        is_made_up = is_cancellation_type(exc) and not is_real_cancellation(exc)
        if is_ours or is_made_up or isinstance(exc, Exception):
            return DeadlinePassed(self._seconds, where)
        return None

    def reset_expired(self) -> DeadlinePassed:
        """Close a scope that expired just as its call returned. The next call opens a new scope."""
        self.close()
        self.until = math.inf
        return DeadlinePassed(self._seconds)

    @ki_protected
    def close(self) -> None:
        """Exit the scope if it is open, and stop watching."""
        scope, self.scope = self.scope, None
        if scope is not None:
            scope.__exit__(None, None, None)
        self.awaited = None
        if self._watch is not None:
            self._watch.leave(self)

    def wait_info(self) -> WaitInfo | None:
        """Describe the current call for reports about sessions that hang."""
        if self.awaited is None:
            return None
        return WaitInfo(label=self.label, until=self.until)


@attrs.define(eq=False)
class TimeBudget:
    """Time that several steps share, such as those of the closing of a session.

    Attributes:
        until: The time at which the budget is used up, by the loop's clock. Infinite for no limit.
    """

    until: float = math.inf

    @classmethod
    def starting_now(cls, seconds: float | None) -> TimeBudget:
        """Create a budget that expires in ``seconds``. With None it never expires."""
        return cls(math.inf if seconds is None else current_time() + seconds)

    @property
    def is_used_up(self) -> bool:
        """True if no time is left."""
        return self._left() == 0.0

    def half(self, seconds: float) -> float:
        """Cap a step at half the remaining time, since the number of later steps is unknown."""
        return min(seconds, self._left() / 2)

    def share(
        self, seconds: float | None, steps_left: int = 1, reserve: float = 0.0
    ) -> float | None:
        """Return the seconds for the next of ``steps_left`` steps.

        Args:
            seconds: The deadline of the step, or None for no limit.
            steps_left: The number of remaining steps, including this one.
            reserve: Seconds to keep for each later step.
        """
        left = self._left()
        if left == math.inf:
            return seconds
        available = max(left - reserve * (steps_left - 1), left / steps_left)
        return available if seconds is None else min(seconds, available)

    def reserve(self, seconds: float, steps: int) -> float:
        """Return the seconds to keep for each step: at most half of the time for all of them."""
        return min(seconds, self._left() / (2 * max(steps, 1)))

    def _left(self) -> float:
        return self.until if self.until == math.inf else max(self.until - current_time(), 0.0)
