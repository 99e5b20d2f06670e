"""Deadlines for code we did not write: one cancel scope serves a whole series of calls, its deadline moving along.

A fresh scope per call costs two to four times as much. The scope is opened when the first call of a series really has
something to await, so a series of synchronous calls costs none. Sits on `backend`; used by dispatch, channels, opening and
cleanup.
"""

from __future__ import annotations

import math
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio

from amplifier.contracts._containment import contained_failure

from .backend import cancel_scope, loop_clock
from .watchdog import Watchdog

SLACK = 0.01
"""A deadline is moved only when it is off by more than this part of it: a call may get 1 % less time than promised."""


class DeadlinePassed(Exception):
    """A call was cut off, or came back late, at its deadline. Stays inside the kernel; reports say it in words.

    Attributes:
        answer: What a call that came back late had to say.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds
        self.answer: Any = None


class DeadlineGroup:
    """Foreign calls, one after another, each under its own deadline.

    Use `run` for one call. Dispatch, which is on the hot path, does the same by hand: `arm`, await, and `judge` what
    was raised. `close` must be called at the end, in the same task.

    Once a call really waits, the series is under its session's watch, which costs a timer and, on trio, a task for it. Most
    mounts and cleanups wait for nothing; `run` spares them that.
    """

    __slots__ = (
        "_armed_for",
        "_is_watched",
        "_limit",
        "_scope",
        "_seconds",
        "_watch",
        "awaited",
        "clock",
        "label",
        "started",
        "until",
    )

    def __init__(self, watch: Watchdog | None = None, limit: float | None = None) -> None:
        self.clock: Callable[[], float] = loop_clock()
        self.until = math.inf
        self.started = 0.0
        self.label: Any = None
        self.awaited: Any = None
        self._scope: anyio.CancelScope | None = None
        self._armed_for = math.inf
        self._seconds = math.inf
        self._watch = watch
        self._is_watched = False
        self._limit = math.inf if limit is None else self.clock() + limit

    async def run(self, awaitable: Awaitable[Any], seconds: float | None, label: Any) -> Any:
        """Await one call.

        Raises:
            DeadlinePassed: Its deadline passed.
        """
        self.label = label
        self.arm(seconds, self.clock(), awaitable, watched=False)
        try:
            value = await _noticing(awaitable, self._enter_watch)
        except BaseException as exc:
            failure = self.judge(exc)
            if failure is exc:
                del failure  # an exception that names its own frame is a reference cycle
                raise
            raise failure from (exc if isinstance(exc, Exception) else None)
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
        self._seconds = math.inf if seconds is None else seconds
        until = now + self._seconds
        if until > self._limit:
            until = self._limit
            self._seconds = max(until - now, 0.0)
        if self._scope is None:
            self.until = until
            self._armed_for = self._seconds
            self._scope = cancel_scope(until)
            self._scope.__enter__()
            if watched:
                self._enter_watch()
        elif until != self.until and not 0 <= until - self.until <= min(self._armed_for, self._seconds) * SLACK:
            if self._is_watched and self._watch is not None and until < self.until:
                self._watch.hasten(until)
            self.until = until
            self._armed_for = self._seconds
            self._scope.deadline = until

    def judge(self, exc: BaseException) -> Exception:
        """What an exception out of the current call means.

        Returns:
            `DeadlinePassed` when our deadline cut the call off; otherwise the call's own failure, an invented cancellation
            included.

        Raises:
            BaseException: ``exc`` itself when it is not the call's to keep: a real cancellation, Ctrl-C, exit.
        """
        scope = self._scope
        if scope is not None and scope.cancel_called:
            self._scope = None
            try:
                swallowed = scope.__exit__(type(exc), exc, exc.__traceback__)
            except BaseException as rest:  # trio hands back what was in a group beside its Cancelled
                if not isinstance(rest, Exception):
                    raise
                swallowed = True
            finally:
                self._leave_watch()
            if swallowed or isinstance(exc, Exception):
                return DeadlinePassed(self._seconds)
        return contained_failure(exc)

    def renew(self) -> DeadlinePassed:
        """Leave a scope whose deadline has passed although its call came back; the next call opens a fresh one."""
        self.close()
        self.until = math.inf
        return DeadlinePassed(self._seconds)

    def close(self) -> None:
        """Leave the scope, if one was opened."""
        if self._scope is not None:
            scope, self._scope = self._scope, None
            self._leave_watch()
            scope.__exit__(None, None, None)

    def _enter_watch(self) -> None:
        if self._watch is not None and not self._is_watched:
            self._is_watched = True
            self._watch.enter(self)

    def _leave_watch(self) -> None:
        if self._watch is not None and self._is_watched:
            self._is_watched = False
            self._watch.leave(self)


@types.coroutine
def _noticing(awaitable: Any, on_wait: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Await something, and say so when it turns out to wait: a coroutine's first step often is its last."""
    driven_by_hand = awaitable
    if type(awaitable) is not types.CoroutineType:
        if type(awaitable) is not types.GeneratorType:
            driven_by_hand = awaitable.__await__()
        if not (hasattr(driven_by_hand, "send") and hasattr(driven_by_hand, "throw")):
            on_wait()  # a plain iterator, which is allowed
            return (yield from driven_by_hand)
    answer: Any = None
    thrown: BaseException | None = None
    is_noticed = False
    try:
        while True:
            try:
                trap = driven_by_hand.send(answer) if thrown is None else driven_by_hand.throw(thrown)
            except StopIteration as end:
                return end.value
            answer = thrown = None
            try:
                if not is_noticed:
                    is_noticed = True
                    on_wait()
                answer = yield trap
            except GeneratorExit:
                driven_by_hand.close()
                raise
            except BaseException as exc:  # noqa: BLE001 — whatever the loop throws is for the one that waits
                thrown = exc
    finally:
        answer = thrown = trap = None  # see `DeadlineGroup.run`


def call_foreign(fn: Callable[..., Any], *args: Any) -> Any:
    """Call third-party code that may be sync; whatever is its own failure leaves as an ``Exception``."""
    try:
        return fn(*args)
    except BaseException as exc:
        failure = contained_failure(exc)
        if failure is exc:
            raise
        raise failure from exc
