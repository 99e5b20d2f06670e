"""Deadlines for third-party code: every call into it is bounded, and its failure is distinguished from what must pass through.

`DeadlineGroup` is the one mechanism: calls one after another, each under its own deadline. They share one cancel scope, whose deadline moves
from call to call, because a fresh scope for each costs two to four times as much. `run_bounded` is for a single call. `TimeBudget` divides what
is left of a closing. `Watchdog` notices calls that refuse to be cancelled.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs

from amplifier._json import redact_text
from amplifier.contracts._cancellation import cancel_scope, contained_failure, loop_clock, text_of

from .backend import RunningCall, Spawn, current_raw_task, location_of_raise, start_timer, task_name, where_suspended
from .uninterrupted import interruptible

SLACK = 0.01
"""A deadline is moved only when it is off by more than this part of it: a call may get 1 % less time than promised."""

UNWINDING = 1.0
"""Seconds a cancelled call is given to unwind before it is called unresponsive."""

LONGEST_INTERVAL = 300.0


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


@interruptible
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


def failure_text(error: BaseException) -> str:
    """The text of an exception, without secrets: it goes into events, to applications and, as the reason of a denial, to the model."""
    return redact_text(text_of(error))


def failure_words(error: BaseException) -> str:
    """The same with its type, which a deadline needs not."""
    return str(error) if isinstance(error, DeadlinePassed) else f"{type(error).__name__}: {failure_text(error)}"


async def run_bounded(awaitable: Awaitable[Any], seconds: float | None, label: Any, watch: Watchdog | None) -> Any:
    """Await one call of third-party code.

    Raises:
        DeadlinePassed: Its deadline passed.
        Exception: Its own failure, contained.
    """
    calls = DeadlineGroup(watch)
    try:
        return await calls.run(awaitable, seconds, label)
    finally:
        scope, calls.scope = calls.scope, None
        if scope is not None:
            scope.__exit__(None, None, None)
        calls.close()


class DeadlineGroup:
    """Calls of third-party code, one after another, each under its own deadline.

    They share one scope, which is opened when the first call really has something to await; so sync calls cost none. Dispatch, which is on the
    hot path, does by hand what `run` does: `arm`, await, and `judge` what was raised. Whoever uses a group leaves the scope first in its
    ``finally``, by a call that is not the kernel's: Ctrl-C at a line before would leave it entered for ever.
    """

    __slots__ = ("_armed_for", "_seconds", "_watch", "awaited", "clock", "label", "limit", "scope", "started", "until")

    def __init__(self, watch: Watchdog | None = None, limit: float | None = None) -> None:
        self.clock: Callable[[], float] = loop_clock()
        self.until: float = math.inf
        self.started: float = 0.0
        self.label: Any = None
        self.awaited: Any = None
        self.scope: anyio.CancelScope | None = None
        self._armed_for = math.inf
        self._seconds = math.inf
        self._watch = watch
        self.limit: float = math.inf if limit is None else self.clock() + limit

    @interruptible
    async def run(self, awaitable: Awaitable[Any], seconds: float | None, label: Any) -> Any:
        """Await one call; one that succeeds leaves the scope open for the next.

        Raises:
            DeadlinePassed: Its deadline passed.
            Exception: Its own failure, contained.
        """
        self.label = label
        failure: BaseException | None = None
        try:
            self.arm(seconds, self.clock(), awaitable)
            value = await awaitable
            if self.clock() >= self.until:
                failure = self.renew()
                failure.answer = value
                raise failure
            return value
        except BaseException as exc:
            failure = failure or self.judge(exc)
            self.close()  # what follows a failure is not part of the call and its deadline
            if failure is exc:
                raise
            raise failure from (None if isinstance(failure, DeadlinePassed) else exc)
        finally:
            self.awaited = None
            del failure  # an exception that names its own frame is a reference cycle

    def arm(self, seconds: float | None, now: float, awaited: Any) -> None:
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
        elif not self.until <= until <= self.until + min(self._armed_for, self._seconds) * SLACK:
            if self._watch is not None and until < self.until:
                self._watch.hasten(until)
            self.until = self.scope.deadline = until
            self._armed_for = self._seconds

    def tighten(self, until: float) -> None:
        """End the running call, and all that follow, at ``until`` at the latest."""
        self.limit = min(self.limit, until)
        if until < self.until and self.scope is not None:
            self.until = self.scope.deadline = until
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
        if self.scope is None or not self.scope.cancel_called:
            return None
        where = location_of_raise(exc)
        scope, self.scope = self.scope, None
        try:
            swallowed = scope.__exit__(exc.__class__, exc, exc.__traceback__)
        except BaseException as rest:  # trio hands back what was in a group beside its Cancelled
            if not isinstance(rest, Exception):
                raise
            swallowed = True
        self.close()
        return DeadlinePassed(self._seconds, where) if swallowed or isinstance(exc, Exception) else None

    def renew(self) -> DeadlinePassed:
        """Leave a scope whose deadline has passed although its call came back; the next call opens a fresh one."""
        self.close()
        self.until = math.inf
        return DeadlinePassed(self._seconds)

    def close(self) -> None:
        """Leave the scope, if one is open, and the watch."""
        scope, self.scope = self.scope, None
        if scope is not None:
            scope.__exit__(None, None, None)
        self.awaited = None
        if self._watch is not None:
            self._watch.leave(self)

    def running_call(self) -> RunningCall | None:
        """What is being waited for."""
        return None if self.awaited is None else RunningCall(label=self.label, until=self.until)


@attrs.define(eq=False)
class TimeBudget:
    """The time that the closing of a session has altogether; everything that happens meanwhile shares it."""

    until: float = math.inf

    @classmethod
    def of(cls, seconds: float | None) -> TimeBudget:
        """So much time from now on; None for no limit."""
        return cls(math.inf if seconds is None else loop_clock()() + seconds)

    @property
    def is_used_up(self) -> bool:
        """Whether no time is left."""
        return self._left() == 0.0

    def half(self, seconds: float) -> float:
        """Seconds for one step of unknown company: what it would get otherwise, at most half of what is left."""
        return min(seconds, self._left() / 2)

    def share(self, seconds: float | None, steps_left: int = 1, reserve: float = 0.0) -> float | None:
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


# ── calls that refuse to be cancelled ──────────────────────────────────────────────────────────────


@attrs.frozen
class Unresponsive:
    """One report about a call that goes on after its deadline."""

    label: Any
    task: str
    where: str
    seconds: float
    overdue: float


class Watchdog:
    """Active calls of one session and the timer over them: notices those that refuse to be cancelled.

    Python has no way to end such code. The kernel waits for it, never pretends it is gone, and reports it: at the call's
    deadline (plus a second to unwind) and then at growing intervals, by module, task and await. One timer per session, armed
    only while calls with a deadline are active.
    """

    __slots__ = ("_report", "_reported", "_spawn", "_stop_timer", "_tasks", "_wakes_at", "is_stopped")

    def __init__(self, report: Callable[[Unresponsive], None]) -> None:
        self._report = report
        self._tasks: dict[DeadlineGroup, Any] = {}
        self._reported: dict[DeadlineGroup, tuple[float, float, float]] = {}  # for which deadline, next when, interval
        self._stop_timer: Callable[[], None] | None = None
        self._wakes_at = math.inf
        self._spawn: Spawn | None = None
        self.is_stopped: bool = False

    def start(self, spawn: Spawn | None) -> None:
        """Watch from now on; timers that need a task take it from ``spawn``, and without it are not made."""
        self._spawn = spawn
        self.is_stopped = False
        if not self._tasks:
            self._disarm()  # a session that waits for a turn needs no timer
        elif spawn is not None:
            self._disarm()
            self.hasten(min(call.until for call in self._tasks))

    def enter(self, call: DeadlineGroup) -> None:
        """A call (or a series of them, its label changing) has become active in this task."""
        if self.is_stopped:  # a timer would keep a closed session alive
            return
        self._tasks[call] = current_raw_task()
        self.hasten(call.until)

    def hasten(self, until: float) -> None:
        """An active call has got this deadline. Later ones need no word: a wake-up that comes too early just looks again."""
        due = until + UNWINDING
        if due < self._wakes_at and not self.is_stopped:
            self._arm(due, loop_clock()())

    def leave(self, call: DeadlineGroup) -> None:
        """The call is over."""
        self._tasks.pop(call, None)
        self._reported.pop(call, None)

    def tighten(self, until: float) -> None:
        """The session closes: end every active call at ``until`` at the latest."""
        for call in list(self._tasks):
            call.tighten(until)

    def stop(self) -> None:
        """Forget everything; the session is closed."""
        self.is_stopped = True
        self._spawn = None
        self._tasks.clear()
        self._reported.clear()
        self._disarm()

    def _arm(self, at: float, now: float) -> None:
        self._disarm()
        if at < math.inf:
            self._wakes_at = at
            self._stop_timer = start_timer(max(at - now, 0.0), self._look, self._spawn)

    def _disarm(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer()
            self._stop_timer = None
        self._wakes_at = math.inf

    def _look(self) -> None:
        self._stop_timer = None
        self._wakes_at = math.inf
        now = loop_clock()()
        next_look = math.inf
        for call, task in list(self._tasks.items()):
            until, due, interval = self._reported.get(call, (math.nan, 0.0, 0.0))
            if until != call.until:  # its first look, or another call of the series
                due, interval = call.until + UNWINDING, UNWINDING
            if now >= due:
                where, name = where_suspended(call.awaited), task_name(task)
                self._report(Unresponsive(call.label, name, where, call.until - call.started, now - call.until))
                interval = min(interval * 2, LONGEST_INTERVAL)
                due = now + interval
            self._reported[call] = call.until, due, interval
            next_look = min(next_look, due)
        self._arm(next_look, now)
