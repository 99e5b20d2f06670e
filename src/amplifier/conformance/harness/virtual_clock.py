"""Virtual time for the checks: waiting of the module costs nothing, and takes as long on a busy machine as on an idle one.

The clock of the event loop stands still while anything runs, and jumps to the next timer when nothing can run. It passes as
on the wall while something outside the loop is at work, whose duration no one knows: a thread, a child process, a
connection. `time.monotonic`, `time.time` and their relatives jump along, for modules that read them.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from amplifier.conformance.harness.llm_server.server_process import server_ids
from amplifier.testing.virtual_time import VirtualTimeLoop

from .cpu_clock import skip, skipped

if TYPE_CHECKING:
    import trio

KIT_THREAD = "conformance"
"""Beginning of the names of the kit's own threads, which do nothing that the module could wait for."""
_SLICE = 0.01
"""Real seconds between two looks at whether work outside the loop is still going on."""
_TASKS = Path("/proc/self/task")
_POOLED_THREAD = "AnyIO worker thread"
_real_monotonic = time.monotonic
_when_stuck: list[Callable[[], None]] = []
_local = threading.local()
_TURNS_TO_END = 100_000
_SECONDS_TO_END = 600.0
"""Turns of the loop, and virtual seconds, that a cancelled call may go on; it has one second, in which no loop turns so often."""
_TURNS_BETWEEN_LOOKS = 256
_turns = 0
_jumps = 0
_EXACT_SECONDS = 1e6
"""Up to here a sum of times is as exact as asyncio's timers need it."""


def let_time_jump() -> None:
    """Let the functions of `time` jump along with virtual time, in this process, from now on."""
    for name in ("monotonic", "perf_counter", "time"):
        setattr(time, name, _jumping(getattr(time, name), 1))
        setattr(time, f"{name}_ns", _jumping(getattr(time, f"{name}_ns"), 1_000_000_000))


def _jumping(read: Callable[[], Any], unit: int) -> Callable[[], Any]:
    def now() -> Any:
        return read() + (skipped() if unit == 1 else int(skipped() * unit))

    return now


def run_virtually(function: Callable[..., Any], *args: Any, backend: str) -> Any:
    """As `anyio.run`, in virtual time."""
    options: dict[str, Any] = {"loop_factory": _Loop}
    if backend == "trio":
        options = {"clock": _trio_clock(), "instruments": [_trio_turns()]}
    _local.is_virtual = True
    try:
        return anyio.run(function, *args, backend=backend, backend_options=options)
    finally:
        _local.is_virtual = False


def is_virtual() -> bool:
    """Whether the loop of this thread runs in virtual time."""
    return getattr(_local, "is_virtual", False)


@contextmanager
def when_stuck(call: Callable[[], None]) -> Iterator[None]:
    """Call a function if in the body nothing can ever happen any more: no task can run, no timer, nothing outside."""
    _when_stuck.append(call)
    try:
        yield
    finally:
        _when_stuck.remove(call)


def _report_stuck() -> bool:
    """Call the innermost function that asked for it; returns whether there was one."""
    if not _when_stuck or threading.current_thread() is not threading.main_thread():
        return False
    _when_stuck[-1]()
    return True


@attrs.define(eq=False)
class _Limit:
    """What a call may take.

    Attributes:
        scope: Cancelled at its end.
        until: The real time of its end, while the loop waits for something outside.
        last_jump: The jump of the clock after which to cancel it.
        cancelled: The turn and the virtual time at which it was first seen cancelled.
    """

    scope: anyio.CancelScope
    until: float
    last_jump: float
    cancelled: tuple[int, float] | None = None

    def look(self) -> None:
        """Cancel the scope after its last jump, and report a call as stuck that goes on although it was cancelled."""
        if not self.scope.cancel_called:
            if _jumps > self.last_jump:
                self.scope.cancel()
            return
        turn, second = self.cancelled = self.cancelled or (_turns, skipped())
        if _turns - turn > _TURNS_TO_END or skipped() - second > _SECONDS_TO_END:
            self.cancelled = None
            _report_stuck()


_limits: list[_Limit] = []


@contextmanager
def limited(scope: anyio.CancelScope, seconds: float, *, jumps: float = math.inf) -> Iterator[None]:
    """Cancel a scope once the body has taken that many real seconds and waits for something outside the loop.

    A body that goes on for long after its scope was cancelled counts as stuck.

    Args:
        scope: The scope around the body.
        seconds: The real seconds.
        jumps: Cancel the scope as well after about so many jumps of the clock: it polls, and a jump costs real time.
    """
    limit = _Limit(scope, _real_monotonic() + seconds, _jumps + jumps)
    _limits.append(limit)
    try:
        yield
    finally:
        _limits.remove(limit)


def turns() -> int:
    """How often the loops of this process have turned in virtual time; a loop that is blocked does not turn."""
    return _turns


def _count_turn() -> None:
    global _turns  # noqa: PLW0603 — one loop after another counts here, and this is called at every turn
    _turns += 1
    if _turns % _TURNS_BETWEEN_LOOKS or threading.current_thread() is not threading.main_thread():
        return
    for limit in list(_limits):
        limit.look()


def _jump(seconds: float) -> None:
    global _jumps  # noqa: PLW0603 — as above
    _jumps += 1
    skip(seconds)


def _expired() -> list[anyio.CancelScope]:
    now = _real_monotonic()
    return [limit.scope for limit in _limits if limit.until < now and not limit.scope.cancel_called]


def is_busy_outside() -> bool:
    """Whether there is a thread or a child process that may still do something."""
    return any(_may_act(thread) for thread in threading.enumerate()) or _has_children()


def _may_act(thread: threading.Thread) -> bool:
    """Whether a thread may act on the loop; the loop itself knows about AnyIO's worker threads."""
    if thread in (threading.current_thread(), threading.main_thread()) or thread.name.startswith(KIT_THREAD):
        return False
    if thread.name == _POOLED_THREAD:
        return False
    if hasattr(thread, "is_awaited"):  # of an asyncio island, which acts on its own only for someone who waits
        return bool(thread.is_awaited())
    worker = getattr(getattr(thread, "_target", None), "__self__", None)
    cache = getattr(sys.modules.get("trio._core._thread_cache"), "THREAD_CACHE", None)
    return worker is None or worker not in getattr(cache, "_idle_workers", ())


def _has_children() -> bool:
    """Whether this process has a child, other than the kit's own server."""
    own = server_ids()
    for thread in threading.enumerate():
        try:
            text = (_TASKS / str(thread.native_id) / "children").read_text()
        except OSError:
            continue
        if any(int(pid) not in own for pid in text.split()):
            return True
    return False


class _Loop(VirtualTimeLoop):
    """The loop of asyncio in virtual time."""

    def _work_outside(self) -> bool:
        for scope in _expired():
            self.call_soon_threadsafe(scope.cancel)  # which also ends the wait that this is called from
        return super()._work_outside() or is_busy_outside()

    def _advance(self, seconds: float, waited: float) -> None:
        super()._advance(seconds, waited)
        if self._virtual_now > _EXACT_SECONDS:  # rounded down, the timer would never be due
            self._virtual_now = math.nextafter(self._virtual_now, math.inf)
        _jump(max(seconds - waited, 0.0))

    def _turn(self) -> None:
        _count_turn()

    def _wait_without_timer(self) -> None:
        # Work that has just ended may have left a message; looking does not take it.
        is_alone = not self._work_outside() and not self._open_io() and not self._jumping_selector.poll()
        if is_alone and _report_stuck():
            self.call_soon_threadsafe(_count_turn)  # or the loop would sleep, whatever the function has done


def _trio_turns() -> trio.abc.Instrument:
    import trio  # noqa: PLC0415 — trio is an optional part

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            _count_turn()

    return Turns()


def _trio_clock() -> trio.abc.Clock:
    """The clock of trio in virtual time."""
    import trio.testing  # noqa: PLC0415 — trio is an optional part

    class Clock(trio.abc.Clock):
        """Trio asks for a sleeping time only when no task can run."""

        def __init__(self) -> None:
            self._now = 0.0
            self._asleep_since: float | None = None
            self._was_quiet = False

        def start_clock(self) -> None:
            """Do nothing: the clock moves when trio sleeps."""

        def current_time(self) -> float:
            if self._asleep_since is not None:
                self._now += _real_monotonic() - self._asleep_since
                self._asleep_since = None
            return self._now

        def deadline_to_sleep_time(self, deadline: float) -> float:
            if self._is_busy_outside():
                for scope in _expired():
                    scope.cancel()
                self._was_quiet = False
                self._asleep_since = _real_monotonic()
                return min(deadline - self._now, _SLICE)
            if not self._was_quiet:  # what has just ended may have left a message, which comes first
                self._was_quiet = True
                return 0.0
            self._was_quiet = False
            if math.isinf(deadline):
                _report_stuck()
                return _SLICE
            _jump(max(deadline - self._now, 0.0))
            self._now = max(deadline, self._now)
            return 0.0

        @staticmethod
        def _is_busy_outside() -> bool:
            counted: Any = trio.lowlevel.current_statistics().io_statistics
            waiting = ("tasks_waiting", "tasks_waiting_read", "tasks_waiting_write")
            if sum(getattr(counted, name, 0) for name in waiting) > 1:  # one waits for messages from threads
                return True
            # A thread counts as idle shortly before its result arrives; a task that waits for it is counted until then.
            if trio.testing.active_thread_count() or trio.to_thread.current_default_thread_limiter().borrowed_tokens:
                return True
            return is_busy_outside()

    return Clock()
