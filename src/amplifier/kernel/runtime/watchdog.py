"""Notices calls that refuse to be cancelled.

Python has no way to end such code. The kernel waits for it, never pretends it is gone, and reports it: at the call's
deadline (plus a second to unwind) and then at growing intervals, by module, task and await. One timer per session, armed
only while calls with a deadline are active. Sits on `backend` and `await_location`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import attrs

from amplifier.contracts._scopes import loop_clock

from .await_location import where_suspended
from .backend import Spawn, current_raw_task, start_timer, task_name

UNWINDING = 1.0
"""Seconds a cancelled call is given to unwind before it is called unresponsive."""

LONGEST_INTERVAL = 300.0


class Watched(Protocol):
    """What the watch needs to know of an active call."""

    until: float
    started: float
    label: Any
    awaited: Any

    def tighten(self, until: float) -> None:
        """End the call at ``until`` at the latest."""
        ...


@attrs.frozen
class Unresponsive:
    """One report about a call that goes on after its deadline."""

    label: Any
    task: str
    where: str
    seconds: float
    overdue: float


@attrs.define(eq=False)
class _Progress:
    """How far the reporting of one call has come; made at its first look, which most calls do not live to see."""

    task: Any
    until: float
    next_report: float
    interval: float = UNWINDING


class Watchdog:
    """Active calls of one session and the timer over them."""

    __slots__ = ("_report", "_spawn", "_stop_timer", "_tasks", "_wakes_at", "is_stopped")

    def __init__(self, report: Callable[[Unresponsive], None]) -> None:
        self._report = report
        self._tasks: dict[Watched, Any] = {}  # the task of a call, or its progress
        self._stop_timer: Callable[[], None] | None = None
        self._wakes_at = math.inf
        self._spawn: Spawn | None = None
        self.is_stopped: bool = False

    def start(self, spawn: Spawn | None) -> None:
        """The session has opened; timers that need a task take it from ``spawn``."""
        self._spawn = spawn
        self.is_stopped = False

    def enter(self, call: Watched) -> None:
        """A call (or a series of them, its label changing) has become active in this task."""
        if self.is_stopped:  # a timer would keep a closed session alive
            return
        self._tasks[call] = current_raw_task()
        self.hasten(call.until)

    def hasten(self, until: float) -> None:
        """An active call has got this deadline. Later ones need no word: a wake-up that comes too early just looks again."""
        due = until + UNWINDING
        if due < self._wakes_at and not self.is_stopped:
            self._arm(due)

    def leave(self, call: Watched) -> None:
        """The call is over."""
        self._tasks.pop(call, None)

    def tighten(self, until: float) -> None:
        """The session closes: end every active call at ``until`` at the latest."""
        for call in list(self._tasks):
            call.tighten(until)

    def release_tasks(self) -> None:
        """The session's task group takes no more tasks: where a timer needs one, there is no timer from now on."""
        self._spawn = None

    def stop(self) -> None:
        """Forget everything; the session is closed."""
        self.is_stopped = True
        self._spawn = None
        self._tasks.clear()
        self._disarm()

    def _arm(self, at: float) -> None:
        self._disarm()
        if at < math.inf:
            self._wakes_at = at
            self._stop_timer = start_timer(max(at - loop_clock()(), 0.0), self._look, self._spawn)

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
        for call, known in list(self._tasks.items()):
            progress = known if isinstance(known, _Progress) else _Progress(known, math.nan, 0.0)
            if progress.until != call.until:  # its first look, or another call of the series
                progress = self._tasks[call] = _Progress(progress.task, call.until, call.until + UNWINDING)
            if now >= progress.next_report:
                self._report(_describe(call, progress.task, now))
                progress.interval = min(progress.interval * 2, LONGEST_INTERVAL)
                progress.next_report = now + progress.interval
            next_look = min(next_look, progress.next_report)
        self._arm(next_look)


def _describe(call: Watched, task: Any, now: float) -> Unresponsive:
    return Unresponsive(
        label=call.label,
        task=task_name(task),
        where=where_suspended(call.awaited),
        seconds=call.until - call.started,
        overdue=now - call.until,
    )
