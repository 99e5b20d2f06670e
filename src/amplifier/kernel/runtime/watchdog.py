"""Notice calls that don't react to their cancellation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import attrs

from amplifier.contracts.cancellation import current_time

from .frames import where_suspended
from .loop import Spawn, current_raw_task, start_timer, task_name

UNWIND_GRACE = 1.0
"""Seconds a cancelled call is given to unwind before it is called unresponsive."""

MAX_INTERVAL = 300.0
"""Maximum number of seconds between two reports about the same call."""


class WatchedCall(Protocol):
    """A call under a deadline, see `deadlines.ReusableDeadline`.

    Attributes:
        label: The kernel object that the call is made for, or a text that describes the call.
        awaited: The awaitable of the call.
        started: The time at which the call started, by the loop's clock.
        until: The deadline of the call, by the loop's clock.
    """

    label: object
    awaited: object
    started: float
    until: float

    def tighten(self, until: float) -> None:
        """End the call at ``until`` at the latest."""


@attrs.frozen
class Unresponsive:
    """A report about a call that continues after its deadline.

    Attributes:
        label: The kernel object that the call was made for, or a text that describes the call.
        task: The name of the task.
        where: The await at which the call is suspended, as ``file:line in function``.
        seconds: The time that the call had.
        overdue: Seconds since the deadline.
    """

    label: object
    task: str
    where: str
    seconds: float
    overdue: float


# Python can't end code that ignores its cancellation. The kernel waits for such a call instead of
# abandoning it, and reports it: a second after its deadline, and then at growing intervals. There
# is one timer per session, which runs only while calls with a deadline are active. A timer for each
# call would cost more than most calls.


class Watchdog:
    """The active calls of one session, and the timer that checks them.

    Attributes:
        is_stopped: True once the session is closed. A timer would keep the session alive.
    """

    __slots__ = (
        "_report",
        "_reported",
        "_spawn",
        "_stop_timer",
        "_tasks",
        "_wakes_at",
        "is_stopped",
    )

    def __init__(self, report: Callable[[Unresponsive], None]) -> None:
        self._report = report
        self._tasks: dict[WatchedCall, object] = {}
        # For each call, the reported deadline, the time of the next report, and the interval before
        # it.
        self._reported: dict[WatchedCall, tuple[float, float, float]] = {}
        self._stop_timer: Callable[[], None] | None = None
        self._wakes_at = math.inf
        self._spawn: Spawn | None = None
        self.is_stopped: bool = False

    def start(self, spawn: Spawn | None) -> None:
        """Start watching. On trio, ``spawn`` starts the tasks of timers."""
        self._spawn = spawn
        self.is_stopped = False
        if not self._tasks:
            # No call is active, so a timer left from an earlier call isn't needed.
            self._disarm()
        elif spawn is not None:
            self._disarm()
            self.hasten(min(call.until for call in self._tasks))

    def enter(self, call: WatchedCall) -> None:
        """Watch a call, or a series of calls, that has started in this task."""
        if self.is_stopped:
            return
        self._tasks[call] = current_raw_task()
        self.hasten(call.until)

    def hasten(self, until: float) -> None:
        """Set the timer for a deadline, unless it fires earlier anyway.

        Waking up early is harmless.
        """
        due = until + UNWIND_GRACE
        if due < self._wakes_at and not self.is_stopped:
            self._arm(due, current_time())

    def leave(self, call: WatchedCall) -> None:
        """Stop watching a call that is over."""
        self._tasks.pop(call, None)
        self._reported.pop(call, None)

    def tighten(self, until: float) -> None:
        """End every active call at ``until`` at the latest, because the session closes."""
        for call in list(self._tasks):
            call.tighten(until)

    def stop(self) -> None:
        """Forget everything, because the session is closed."""
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
        """Report the calls that are overdue and set the timer for the next look."""
        self._stop_timer = None
        self._wakes_at = math.inf
        now = current_time()
        next_look = math.inf
        for call, task in list(self._tasks.items()):
            until, due, interval = self._reported.get(call, (math.nan, 0.0, 0.0))
            if until != call.until:  # the first look at this call
                due, interval = call.until + UNWIND_GRACE, UNWIND_GRACE
            if now >= due:
                where = where_suspended(call.awaited, task)
                given, overdue = call.until - call.started, now - call.until
                self._report(Unresponsive(call.label, task_name(task), where, given, overdue))
                interval = min(interval * 2, MAX_INTERVAL)
                due = now + interval
            self._reported[call] = call.until, due, interval
            next_look = min(next_look, due)
        self._arm(next_look, now)
