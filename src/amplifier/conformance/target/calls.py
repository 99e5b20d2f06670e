"""Calls of foreign code with a deadline, in virtual time, and how they ended; time and work measured so that a busy machine changes nothing.

The clock of the event loop stands still while anything runs, and jumps to the next timer when nothing can run. It passes as
on the wall while something outside the loop is at work, whose duration no one knows: a thread, a child process, a
connection. `time.monotonic`, `time.time` and their relatives jump along, for modules that read them.

`worked_time` excludes time spent waiting for a CPU: Linux reports how long a thread was ready to run without one. Elsewhere it is an ordinary monotonic
clock. Checks limit themselves by calls of the module, not by seconds.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id
from typing import Any, Literal

import anyio
import attrs

from amplifier._internal.processes import read_proc
from amplifier.conformance.inputs.server_process import server_ids
from amplifier.conformance.target.process import POOLED_THREAD, started_processes
from amplifier.testing.virtual_time import TimeWatch, virtual_backend

_THREADS = Path("/proc/self/task")
_MAX_SLOWDOWN = 10.0
_skipped = [0.0]


def worked_time(thread: int | None = None) -> float:
    """Real seconds on a clock that stops while a thread, this one if none is given, waits for a CPU; virtual time does not count."""
    thread = thread or get_native_id()
    waited = cpu_wait(thread)
    while True:
        now, before = time.monotonic(), waited
        waited = cpu_wait(thread)
        if (
            waited == before
        ):  # or the thread waited between the two readings, which then do not belong together
            return now - waited - _skipped[0]


def skipped() -> float:
    """Seconds that virtual time has skipped so far."""
    return _skipped[0]


def cpu_wait(thread: int) -> float:
    """Seconds that a thread, given by its native id, has waited for a CPU so far."""
    try:
        return int(read_proc(f"{_THREADS}/{thread}/schedstat").split()[1]) / 1e9
    except (ValueError, IndexError):
        return 0.0


def machine_load() -> float:
    """How many times longer other processes may take than on an idle machine; limits on waiting for them are multiplied by it."""
    try:
        return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), _MAX_SLOWDOWN)
    except OSError:
        return 1.0


def process_cpu_wait() -> float:
    """As `cpu_wait`, for all threads of the process together."""
    try:
        return sum(cpu_wait(int(each.name)) for each in _THREADS.iterdir())
    except OSError:
        return 0.0


# ── work ──

_MOUNT = 10
_PROCESS = 200
_done = [0]


def count_call() -> None:
    """Count a call of the module."""
    _done[0] += 1


def count_mount() -> None:
    """Count a mount of the module."""
    _done[0] += _MOUNT


def work_done() -> int:
    """What the module was made to do so far, in calls."""
    return _done[0] + _PROCESS * started_processes()


class Budget:
    """The work that a check may ask of the module.

    Args:
        calls: How many calls.
    """

    def __init__(self, calls: float) -> None:
        self._until = work_done() + calls

    def is_spent(self) -> bool:
        """Whether it is used up."""
        return work_done() >= self._until


# ── virtual time ──

KIT_THREAD = "conformance"
"""Beginning of the names of the kit's own threads, which do nothing that the module could wait for."""
_real_monotonic = time.monotonic
_when_stuck: list[Callable[[], None]] = []
_local = threading.local()
_TURNS_TO_END = 100_000
_SECONDS_TO_END = 600.0
"""Turns of the loop, and virtual seconds, that a cancelled call may go on; it has one second, in which no loop turns so often."""
_TURNS_BETWEEN_LOOKS = 256
_turns = 0
_jumps = 0


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
    _, options = virtual_backend(backend, _Watch(backend))
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


def _may_act(thread: threading.Thread) -> bool:
    """Whether a thread may act on the loop; the loop itself knows about AnyIO's worker threads."""
    if thread in (threading.current_thread(), threading.main_thread()) or thread.name.startswith(
        KIT_THREAD
    ):
        return False
    if thread.name == POOLED_THREAD:
        return False
    if hasattr(
        thread, "is_awaited"
    ):  # of an asyncio island, which acts on its own only for someone who waits
        return bool(thread.is_awaited())
    # Private: the idle threads of trio's pool must not count as busy.
    worker = getattr(getattr(thread, "_target", None), "__self__", None)
    cache = getattr(sys.modules.get("trio._core._thread_cache"), "THREAD_CACHE", None)
    return worker is None or worker not in getattr(cache, "_idle_workers", ())


def child_processes() -> set[int]:
    """The children of this process, other than the kit's own server."""
    found: set[int] = set()
    for thread in threading.enumerate():
        with suppress(OSError):
            found.update(
                map(int, (_THREADS / str(thread.native_id) / "children").read_text().split())
            )
    return found.difference(server_ids())


class _Watch(TimeWatch):
    """Holds the clock while anything outside the loop may act, counts turns and jumps, and reports a loop that is stuck."""

    def __init__(self, backend: str) -> None:
        self._is_trio = backend == "trio"

    def is_busy(self) -> bool:
        return (
            (self._is_trio and _has_trio_io())
            or any(_may_act(thread) for thread in threading.enumerate())
            or bool(child_processes())
        )

    def expired(self) -> list[anyio.CancelScope]:
        now = _real_monotonic()
        return [
            limit.scope for limit in _limits if limit.until < now and not limit.scope.cancel_called
        ]

    def on_turn(self) -> None:
        global _turns  # noqa: PLW0603 — one loop after another counts here, and this is called at every turn
        _turns += 1
        if (
            _turns % _TURNS_BETWEEN_LOOKS == 0
            and threading.current_thread() is threading.main_thread()
        ):
            for limit in list(_limits):
                limit.look()

    def on_jump(self, seconds: float) -> None:
        global _jumps  # noqa: PLW0603 — as above
        _jumps += 1
        _skipped[0] += seconds

    def on_stuck(self) -> bool:
        return _report_stuck()


def _has_trio_io() -> bool:
    import trio  # noqa: PLC0415 — trio is an optional part

    counted: Any = trio.lowlevel.current_statistics().io_statistics
    waiting = ("tasks_waiting", "tasks_waiting_read", "tasks_waiting_write")
    return (
        sum(getattr(counted, name, 0) for name in waiting) > 1
    )  # one waits for messages from threads


# ── calls ──

CALL_SECONDS = 5.0
"""Real seconds that a call may take while it waits for a thread, a process or a connection."""
PATIENCE = 60.0
"""Virtual seconds that a call may take: they cost nothing, and a module may be slow."""
_JUMPS = 3_000
"""How often the virtual clock may jump in a call: one that polls every hundredth of a second takes half a minute then."""
_AFTER_A_HANG = 1.0
_hangs: list[bool] = []


@attrs.frozen(kw_only=True)
class Outcome:
    """How a call of foreign code ended.

    Attributes:
        kind: ``returned``, ``raised``, or ``late`` when it was cancelled at its deadline.
        seconds: The deadline, if it was late.
        is_async: Whether the function returned an awaitable; None if calling it raised.
        overrun: How many virtual seconds it went on after its deadline, at which it was cancelled.
    """

    kind: Literal["returned", "raised", "late"]
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    is_async: bool | None = None
    overrun: float = 0.0

    @property
    def returned(self) -> bool:
        """Whether the call returned in time."""
        return self.kind == "returned"

    def __str__(self) -> str:
        if self.kind == "raised":
            return f"raised {type(self.error).__name__}: {str(self.error)[:200]}"
        if self.kind == "late":
            return f"did not end within {self.seconds:g} s"
        return f"returned {type(self.value).__name__}"


def remember_hang() -> None:
    """Wait less for calls from now on: that the module hangs is known, and that costs time at every check."""
    _hangs.append(True)


def waiting_seconds(seconds: float) -> float:
    """How many real seconds to wait for a call that may take so many."""
    return min(seconds, _AFTER_A_HANG) if _hangs else seconds


def reraise_own_cancellation(error: BaseException) -> None:
    """Raise what foreign code raised again if it is the cancellation of a scope around this task, and nothing else.

    Foreign code may raise anything: an exit, a cancellation that it made up, or a group that holds the real one. None of these ends a
    cancelled call as it should, so the caller reports them.
    """
    if (
        isinstance(error, anyio.get_cancelled_exc_class())
        and anyio.current_effective_deadline() == -math.inf
    ):
        raise error


def _holds_cancellation(error: BaseException) -> bool:
    """Whether an error is a group with a cancellation in it: the call was cancelled and has not failed by itself."""
    return (
        isinstance(error, BaseExceptionGroup)
        and error.subgroup(anyio.get_cancelled_exc_class()) is not None
    )


async def call_with_deadline(
    function: Callable[..., Any],
    *args: Any,
    seconds: float = CALL_SECONDS,
    is_exact: bool = False,
    **kwargs: Any,
) -> Outcome:
    """Call foreign code, sync or async, for a limited time; raises only when it is cancelled from outside.

    Several calls may run at the same time, unlike those of `MountedModule.call`, which sets a watchdog.

    Args:
        function: What to call.
        args: Its arguments.
        seconds: The limit in real seconds; what waits for timers alone may take longer.
        is_exact: Whether the limit is part of the contract, so that it holds for timers as well.
        kwargs: Its keyword arguments.
    """
    count_call()
    started = worked_time()
    is_async, value = None, None
    patient = is_virtual() and not is_exact
    with anyio.CancelScope() as scope:
        begun = anyio.current_time()
        most = waiting_seconds(seconds) * machine_load()
        scope.deadline = begun + (max(seconds, PATIENCE) if patient else most)
        try:
            with limited(scope, most, jumps=_JUMPS if patient else math.inf):
                value = function(*args, **kwargs)
                is_async = inspect.isawaitable(value)
                if is_async:
                    value = await value
        except BaseException as error:  # noqa: BLE001 — foreign code: it may exit, or invent a cancellation
            reraise_own_cancellation(error)
            if not (scope.cancel_called and _holds_cancellation(error)):
                return Outcome(kind="raised", error=error, is_async=is_async)
        if anyio.current_time() <= scope.deadline and not scope.cancel_called:
            return Outcome(kind="returned", value=value, is_async=is_async)
    has_waited = worked_time() - started >= waiting_seconds(seconds)
    if has_waited and is_virtual():
        remember_hang()
    overrun = 0.0 if has_waited or not is_virtual() else anyio.current_time() - scope.deadline
    limit = PATIENCE if patient and not has_waited else seconds
    return Outcome(kind="late", seconds=limit, is_async=is_async, overrun=overrun)


async def waits_for_ever(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call waits for what cannot happen: no timer, thread, process or connection is left to bring it about.

    Only in virtual time that can be known. The call is cancelled then; one that goes on for long is cancelled, too, and nothing is
    known about it.
    """
    count_call()
    is_stuck = False
    with anyio.CancelScope() as scope:

        def stop() -> None:
            nonlocal is_stuck
            is_stuck = True
            scope.cancel()

        try:
            with when_stuck(stop), limited(scope, waiting_seconds(CALL_SECONDS), jumps=_JUMPS):
                await function(*args)
        except BaseException as error:  # noqa: BLE001 — foreign code, as above
            reraise_own_cancellation(error)
    return is_stuck


def binding_error(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Why a function cannot be called with these arguments; None if it can, or has no readable signature."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
