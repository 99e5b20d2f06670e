"""Deadlines for third-party code: every call into it is bounded, and its failure is distinguished from what must pass through.

`run_bounded` is for one call. `DeadlineGroup` serves the calls of a dispatch, an opening or a closing with one cancel scope whose
deadline moves from call to call: a fresh scope for each costs two to four times as much. `TimeBudget` divides what is left of a
closing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Self

import anyio
import attrs

from amplifier.contracts._containment import contained_failure
from amplifier.contracts._scopes import cancel_scope, loop_clock

from .await_location import location_of_raise
from .running_call import RunningCall
from .stepping import drive
from .watchdog import Watchdog

SLACK = 0.01
"""A deadline is moved only when it is off by more than this part of it: a call may get 1 % less time than promised."""


class DeadlinePassed(Exception):
    """A call was cut off, or came back late, at its deadline. Stays inside the kernel; reports put it in words.

    Attributes:
        seconds: What the call was given.
        where: The await at which it was cut off, as ``file:line in function``; None when it came back late.
        answer: What a call that came back late returned.
    """

    def __init__(self, seconds: float, where: str | None = None) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds
        self.where = where
        self.answer: Any = None


def check_timeout(seconds: Any) -> float | None:
    """A deadline as the API takes it: a positive finite number, or None for no limit.

    Raises:
        TypeError: It is not a number.
        ValueError: It is zero, negative, infinite or NaN.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a timeout must be a number of seconds or None, got {seconds!r}")
    if not 0 < seconds <= sys.float_info.max:  # an int can be larger than any float
        raise ValueError(
            f"a timeout must be a positive, finite number of seconds, got {seconds!r:.40}; None means no limit"
        )
    return float(seconds)


def call_foreign(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call third-party code that may be sync; whatever is its own failure leaves as an ``Exception``."""
    try:
        return fn(*args, **options)
    except BaseException as exc:  # noqa: BLE001 — raised again, as itself or contained
        failure = contained_failure(exc)
        try:
            if failure is exc:
                raise
            raise failure from exc
        finally:
            del failure  # an exception that names its own frame is a reference cycle


async def run_bounded(
    awaitable: Awaitable[Any],
    seconds: float | None,
    label: Any,
    watch: Watchdog | None,
) -> Any:
    """Await one call of third-party code.

    It comes under its session's watchdog only when it really waits, which costs a timer and, on trio, a task for it. Most
    mounts and cleanups wait for nothing.

    Raises:
        DeadlinePassed: Its deadline passed.
        Exception: Its own failure, contained.
    """
    started = loop_clock()()
    limit = math.inf if seconds is None else seconds
    return await BoundedCall(label, awaitable, started, started + limit, watch).run()


@attrs.define(eq=False)
class BoundedCall:
    """One call of third-party code under its deadline; see `run_bounded`."""

    label: Any
    awaited: Any
    started: float
    until: float
    watch: Watchdog | None
    scope: anyio.CancelScope | None = None

    async def run(self) -> Any:
        """Await the call."""
        passed: DeadlinePassed | None = None
        value: Any = None
        try:
            with cancel_scope(self.until) as self.scope:
                scope = self.scope
                try:
                    value = await drive(self.awaited, on_wait=self._enter_watch)
                except BaseException as exc:
                    if not scope.cancel_called:
                        failure = contained_failure(exc)
                        if failure is not exc:
                            raise failure from exc
                    else:
                        passed = DeadlinePassed(self.until - self.started, location_of_raise(exc))
                    raise
                if loop_clock()() < self.until:
                    return value
            passed = passed or DeadlinePassed(self.until - self.started)
            passed.answer = value
            raise passed
        except Exception:
            # Cut off, it answered with an error; on trio also what was in a group beside the scope's own Cancelled.
            if passed is None:
                raise
            raise passed from None
        finally:
            if self.watch is not None:
                self.watch.leave(self)
            self.awaited = self.scope = None
            failure = passed = None  # type: ignore[assignment]  # an exception that names its own frame is a cycle

    def tighten(self, until: float) -> None:
        """End the call at ``until`` at the latest."""
        if until < self.until and self.scope is not None:
            self.until = self.scope.deadline = until

    def running_call(self) -> RunningCall:
        """What is being waited for."""
        return RunningCall(label=self.label, until=self.until)

    def _enter_watch(self) -> None:
        if self.watch is not None:
            self.watch.enter(self)


@attrs.define(eq=False)
class TimeBudget:
    """The time that the closing of a session has altogether; everything that happens meanwhile shares it."""

    until: float = math.inf

    @property
    def is_used_up(self) -> bool:
        """Whether no time is left."""
        return self._left() == 0.0

    def half(self, seconds: float) -> float:
        """Seconds for one step of unknown company: what it would get otherwise, at most half of what is left."""
        return min(seconds, self._left() / 2)

    def share(self, seconds: float | None, steps_left: int, reserve: float) -> float | None:
        """Seconds for the next of ``steps_left`` steps, keeping ``reserve`` for each of the others."""
        left = self._left()
        if left == math.inf:
            return seconds
        available = max(left - reserve * (steps_left - 1), left / steps_left)
        return available if seconds is None else min(seconds, available)

    def reserve(self, seconds: float, steps: int) -> float:
        """What to keep for each of so many steps: ``seconds``, but half of the time at most for all of them."""
        return min(seconds, self._left() / (2 * max(steps, 1)))

    def _left(self) -> float:
        return self.until if self.until == math.inf else max(self.until - loop_clock()(), 0.0)


class DeadlineGroup:
    """Calls of third-party code, one after another, each under its own deadline, with one cancel scope for all of them.

        with DeadlineGroup(watch) as calls:
            for ...:
                await calls.run(awaitable, seconds, label)

    The scope is opened when the first call really has something to await, so a group of sync calls costs none. Dispatch, which
    is on the hot path, does by hand what `run` does: `arm`, await, and `judge` what was raised.
    """

    __slots__ = (
        "_armed_for",
        "_armed_until",  # until when another call of as many seconds may have the deadline that is set
        "_is_watched",
        "_scope",
        "_seconds",
        "_watch",
        "awaited",
        "clock",
        "label",
        "limit",
        "started",
        "until",
    )

    def __init__(self, watch: Watchdog | None = None, limit: float | None = None) -> None:
        self.clock: Callable[[], float] = loop_clock()
        self.until: float = math.inf
        self.started: float = 0.0
        self.label: Any = None
        self.awaited: Any = None
        self._scope: anyio.CancelScope | None = None
        self._armed_for = math.inf
        self._armed_until = -math.inf
        self._seconds = math.inf
        self._watch = watch
        self._is_watched = False
        self.limit: float = math.inf if limit is None else self.clock() + limit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def run(self, awaitable: Awaitable[Any], seconds: float | None, label: Any) -> Any:
        """Await one call; like `run_bounded`, but a call that succeeds leaves the scope open for the next one.

        Raises:
            DeadlinePassed: Its deadline passed.
            Exception: Its own failure, contained.
        """
        self.label = label
        self.arm(seconds, self.clock(), awaitable, watched=False)
        try:
            value = await drive(awaitable, on_wait=self._enter_watch)
        except BaseException as exc:  # noqa: BLE001 — raised again, as itself or contained
            failure = self.judge(exc)
            self.close()  # what follows a failure is not part of the call and its deadline
            try:
                if failure is exc:
                    raise
                raise failure from (None if isinstance(failure, DeadlinePassed) else exc)
            finally:
                del failure  # an exception that names its own frame is a reference cycle
        finally:
            self.awaited = None
        if self.clock() >= self.until:
            late = self.renew()
            late.answer = value
            raise late
        return value

    def arm(self, seconds: float | None, now: float, awaited: Any, *, watched: bool = True) -> None:
        """Give the next call ``seconds`` from ``now``."""
        self.started = now
        self.awaited = awaited
        if now <= self._armed_until and seconds == self._seconds:  # as the call before, a moment ago
            return
        self._seconds = math.inf if seconds is None else seconds
        until = now + self._seconds
        if until > self.limit:
            until = self.limit
            self._seconds = max(until - now, 0.0)
        if self._scope is None:
            self.until = until
            self._armed_for = self._seconds
            self._scope = cancel_scope(until)
            self._scope.__enter__()
            if watched:
                self._enter_watch()
            return
        if until != self.until and not 0 <= until - self.until <= min(self._armed_for, self._seconds) * SLACK:
            if self._is_watched and self._watch is not None and until < self.until:
                self._watch.hasten(until)
            self.until = until
            self._armed_for = self._seconds
            self._scope.deadline = until
        is_exact = until < self.limit and self._armed_for == self._seconds
        self._armed_until = self.until - self._seconds * (1 - SLACK) if is_exact else -math.inf

    def lateness(self, seconds: float, started: float) -> DeadlinePassed:
        """The error for a call that needed no scope, because it never waits, and came back after its deadline or the limit of all."""
        return DeadlinePassed(min(seconds, max(self.limit - started, 0.0)))

    def tighten(self, until: float) -> None:
        """End the running call, and all that follow, at ``until`` at the latest."""
        self.limit = min(self.limit, until)
        self._armed_until = -math.inf
        if until < self.until and self._scope is not None:
            self.until = self._scope.deadline = until
            self._seconds = max(until - self.started, 0.0)

    def judge(self, exc: BaseException, *, is_armed: bool = True) -> Exception:
        """What an exception out of the current call means.

        Args:
            exc: What it raised.
            is_armed: Whether it was given its time with `arm`. If not, it could not wait, so that neither a deadline nor a
                cancellation can have reached it.

        Returns:
            `DeadlinePassed` when our deadline cut the call off; otherwise the call's own failure, contained.

        Raises:
            BaseException: ``exc`` itself when it is not the call's to keep: a real cancellation, Ctrl-C.
        """
        try:
            return (self._passed_deadline(exc) if is_armed else None) or contained_failure(exc, can_wait=is_armed)
        finally:
            del exc  # an exception that names its own frame is a reference cycle

    def _passed_deadline(self, exc: BaseException) -> DeadlinePassed | None:
        scope = self._scope
        if scope is None or not scope.cancel_called:
            return None
        self._scope = None
        self._armed_until = -math.inf
        where = location_of_raise(exc)
        try:
            swallowed = scope.__exit__(type(exc), exc, exc.__traceback__)
        except BaseException as rest:  # trio hands back what was in a group beside its Cancelled
            if not isinstance(rest, Exception):
                raise
            swallowed = True
        finally:
            self._leave_watch()
        return DeadlinePassed(self._seconds, where) if swallowed or isinstance(exc, Exception) else None

    def renew(self) -> DeadlinePassed:
        """Leave a scope whose deadline has passed although its call came back; the next call opens a fresh one."""
        self.close()
        self.until = math.inf
        return DeadlinePassed(self._seconds)

    def close(self) -> None:
        """Leave the scope, if one was opened."""
        if self._scope is not None:
            scope, self._scope = self._scope, None
            self._armed_until = -math.inf
            self._leave_watch()
            scope.__exit__(None, None, None)

    def running_call(self) -> RunningCall | None:
        """What is being waited for."""
        return None if self.awaited is None else RunningCall(label=self.label, until=self.until)

    def _enter_watch(self) -> None:
        if self._watch is not None and not self._is_watched:
            self._is_watched = True
            self._watch.enter(self)

    def _leave_watch(self) -> None:
        if self._watch is not None and self._is_watched:
            self._is_watched = False
            self._watch.leave(self)
