"""Deadlines for calls to foreign code, in virtual time and independent of the machine's load."""

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

# The clock of the event loop stops while anything runs, and jumps to the next timer when nothing
# can run. It follows the real clock while something outside the loop works, since the duration of
# that is unknown: a thread, a child process, a connection. `time.monotonic`, `time.time` and their
# relatives jump along for modules that read them.
#
# `worked_time` excludes the time spent waiting for a CPU, which Linux reports for each thread.
# Elsewhere it is an ordinary monotonic clock. Checks limit themselves by calls of the module
# rather than by seconds.

_THREADS = Path("/proc/self/task")
_MAX_SLOWDOWN = 10.0
_skipped = [0.0]


def worked_time(thread: int | None = None) -> float:
    """Read a clock of real seconds that stops while a thread waits for a CPU.

    Virtual time does not count.

    Args:
        thread: The native id of the thread. None means the calling thread.
    """
    thread = thread or get_native_id()
    waited = cpu_wait(thread)
    while True:
        now, before = time.monotonic(), waited
        waited = cpu_wait(thread)
        # If the thread waited between the two readings, they don't belong together.
        if waited == before:
            return now - waited - _skipped[0]


def skipped() -> float:
    """Return the seconds that virtual time has skipped so far."""
    return _skipped[0]


def cpu_wait(thread: int) -> float:
    """Return the seconds that a thread, given by its native id, has waited for a CPU so far."""
    try:
        return int(read_proc(f"{_THREADS}/{thread}/schedstat").split()[1]) / 1e9
    except (ValueError, IndexError):
        return 0.0


def machine_load() -> float:
    """Return the factor by which other processes may be slower than on an idle machine.

    Limits on waiting for them are multiplied by it.
    """
    try:
        return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), _MAX_SLOWDOWN)
    except OSError:
        return 1.0


def process_cpu_wait() -> float:
    """Return the sum of `cpu_wait` over all threads of the process."""
    try:
        return sum(cpu_wait(int(thread.name)) for thread in _THREADS.iterdir())
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
    """Return the work that the module has done so far, in calls."""
    return _done[0] + _PROCESS * started_processes()


class Budget:
    """The work that a check may ask of the module.

    Args:
        calls: Number of calls.
        seconds: Seconds of `worked_time`, for work whose result may depend on them.
    """

    def __init__(self, calls: float, seconds: float = math.inf) -> None:
        self._until = work_done() + calls
        self._end = worked_time() + seconds

    def is_spent(self) -> bool:
        """Return whether the work is used up."""
        if work_done() >= self._until:
            return True
        return self._end < math.inf and worked_time() >= self._end


# ── virtual time ──

KIT_THREAD = "conformance"
"""Beginning of the names of the kit's own threads. The module never waits for them."""
_real_monotonic = time.monotonic
_when_stuck: list[Callable[[], None]] = []
_local = threading.local()
# Turns of the loop, and virtual seconds, for which a cancelled call may continue. Its deadline is
# one second, in which no loop turns so often.
_MAX_UNWINDING_TURNS = 100_000
_MAX_UNWINDING_SECONDS = 600.0
_TURNS_BETWEEN_LOOKS = 256
_turns = 0
_jumps = 0


def let_time_jump() -> None:
    """Make the functions of `time` follow virtual time in this process, from now on."""
    for name in ("monotonic", "perf_counter", "time"):
        setattr(time, name, _jumping(getattr(time, name), 1))
        setattr(time, f"{name}_ns", _jumping(getattr(time, f"{name}_ns"), 1_000_000_000))


def _jumping(read: Callable[[], Any], unit: int) -> Callable[[], Any]:
    def now() -> Any:
        return read() + (skipped() if unit == 1 else int(skipped() * unit))

    return now


def run_virtually(function: Callable[..., Any], *args: Any, backend: str) -> Any:
    """Run an async function in virtual time, as `anyio.run` does in real time."""
    _, options = virtual_backend(backend, _Watch(backend))
    _local.is_virtual = True
    try:
        return anyio.run(function, *args, backend=backend, backend_options=options)
    finally:
        _local.is_virtual = False


def is_virtual() -> bool:
    """Return whether the loop of this thread runs in virtual time."""
    return getattr(_local, "is_virtual", False)


@contextmanager
def when_stuck(call: Callable[[], None]) -> Iterator[None]:
    """Call a function once the body is stuck.

    It is stuck if no task can run, and no timer or outside event is left.
    """
    _when_stuck.append(call)
    try:
        yield
    finally:
        _when_stuck.remove(call)


def _report_stuck() -> bool:
    """Call the innermost function of `when_stuck`, and return whether there was one."""
    if not _when_stuck or threading.current_thread() is not threading.main_thread():
        return False
    _when_stuck[-1]()
    return True


@attrs.define(eq=False)
class _Limit:
    """The limits of a running call.

    Attributes:
        scope: The scope around the call, which is cancelled when a limit is reached.
        until: Real time at which the call is cancelled while the loop waits for something outside.
        last_jump: Number of the clock's jump after which the call is cancelled.
        cancelled: Turn and virtual time at which the scope was first seen cancelled, if it was.
    """

    scope: anyio.CancelScope
    until: float
    last_jump: float
    cancelled: tuple[int, float] | None = None

    def look(self) -> None:
        """Cancel the scope after its last jump, and report a cancelled call that doesn't end."""
        if not self.scope.cancel_called:
            if _jumps > self.last_jump:
                self.scope.cancel()
            return
        turn, second = self.cancelled = self.cancelled or (_turns, skipped())
        if _turns - turn > _MAX_UNWINDING_TURNS or skipped() - second > _MAX_UNWINDING_SECONDS:
            self.cancelled = None
            _report_stuck()


_limits: list[_Limit] = []


@contextmanager
def limited(scope: anyio.CancelScope, seconds: float, *, jumps: float = math.inf) -> Iterator[None]:
    """Cancel a scope when its body overruns and waits for something outside the loop.

    A body that continues for long after its scope was cancelled counts as stuck.

    Args:
        scope: The scope around the body.
        seconds: Limit in real seconds.
        jumps: Approximate limit on jumps of the clock. A body that polls makes many of them, and
            each costs real time.
    """
    limit = _Limit(scope, _real_monotonic() + seconds, _jumps + jumps)
    _limits.append(limit)
    try:
        yield
    finally:
        _limits.remove(limit)


def turns() -> int:
    """Return how often the loops of this process have turned in virtual time.

    A blocked loop does not turn.
    """
    return _turns


def _may_act(thread: threading.Thread) -> bool:
    """Return True if a thread may act on the loop, which keeps track of AnyIO's workers itself."""
    if thread in (threading.current_thread(), threading.main_thread()) or thread.name.startswith(
        KIT_THREAD
    ):
        return False
    if thread.name == POOLED_THREAD:
        return False
    # The thread of an asyncio island acts only while someone waits for it.
    if hasattr(thread, "is_awaited"):
        return bool(thread.is_awaited())
    # A private attribute of trio, because the idle threads of its pool must not count as busy.
    worker = getattr(getattr(thread, "_target", None), "__self__", None)
    cache = getattr(sys.modules.get("trio._core._thread_cache"), "THREAD_CACHE", None)
    return worker is None or worker not in getattr(cache, "_idle_workers", ())


def child_processes() -> set[int]:
    """Return the children of this process except the kit's own server."""
    children: set[int] = set()
    for thread in threading.enumerate():
        with suppress(OSError):
            children.update(
                map(int, (_THREADS / str(thread.native_id) / "children").read_text().split())
            )
    return children.difference(server_ids())


class _Watch(TimeWatch):
    """Stops the clock while anything outside the loop may act, and reports a stuck loop."""

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
        # Several loops count here one after another, and this runs at every turn.
        global _turns  # noqa: PLW0603
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
    # One task is always waiting for messages from threads.
    return sum(getattr(counted, name, 0) for name in waiting) > 1


# ── calls ──

CALL_SECONDS = 5.0
"""Real seconds that a call may take while it waits for a thread, a process or a connection."""
VIRTUAL_CALL_SECONDS = 60.0
"""Virtual seconds that a call may take. They cost nothing, and a module may be slow."""
# Maximum number of jumps of the clock in a call. A call that polls every hundredth of a second gets
# half a minute.
_MAX_JUMPS = 3_000
_SECONDS_AFTER_HANG = 1.0
_hangs: list[bool] = []


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of a call to foreign code.

    Attributes:
        kind: ``returned``, ``raised``, or ``late`` when it was cancelled at its deadline.
        value: The result of a call that returned.
        error: The exception of a call that raised.
        seconds: The deadline of a late call.
        is_async: True if the function returned an awaitable. None if calling it raised.
        overrun: Virtual seconds between the deadline, at which the call was cancelled, and its end.
    """

    kind: Literal["returned", "raised", "late"]
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    is_async: bool | None = None
    overrun: float = 0.0

    @property
    def returned(self) -> bool:
        """Whether the call returned before its deadline."""
        return self.kind == "returned"

    def __str__(self) -> str:
        if self.kind == "raised":
            return f"raised {type(self.error).__name__}: {str(self.error)[:200]}"
        if self.kind == "late":
            return f"did not end within {self.seconds:g} s"
        return f"returned {type(self.value).__name__}"


def remember_hang() -> None:
    """Shorten the wait for later calls, since a module that hangs costs time in every check."""
    _hangs.append(True)


def waiting_seconds(seconds: float) -> float:
    """Return the real seconds to wait for a call whose limit is `seconds`."""
    return min(seconds, _SECONDS_AFTER_HANG) if _hangs else seconds


def reraise_own_cancellation(error: BaseException) -> None:
    """Raise an error of foreign code again if it is the cancellation of a scope around this task.

    Foreign code may raise anything: an exit, an invented cancellation, or a group that contains
    the real one. None of these ends a cancelled call correctly, so the caller reports them.
    """
    if (
        isinstance(error, anyio.get_cancelled_exc_class())
        and anyio.current_effective_deadline() == -math.inf
    ):
        raise error


def _holds_cancellation(error: BaseException) -> bool:
    """Return whether an error is a group with a cancellation in it.

    Such a call was cancelled. It did not fail on its own.
    """
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
    """Call foreign code, sync or async, within a deadline.

    Only a cancellation from outside is raised. Several calls may run at the same time, unlike those
    of `MountedModule.call`, which sets a watchdog.

    Args:
        function: The function to call.
        args: Its arguments.
        seconds: The limit in real seconds. A call that waits for timers alone may take longer.
        is_exact: True to apply the limit to timers too, because it is part of the contract.
        kwargs: Its keyword arguments.
    """
    count_call()
    started = worked_time()
    is_async, value = None, None
    is_patient = is_virtual() and not is_exact
    with anyio.CancelScope() as scope:
        begun = anyio.current_time()
        limit = waiting_seconds(seconds) * machine_load()
        scope.deadline = begun + (max(seconds, VIRTUAL_CALL_SECONDS) if is_patient else limit)
        try:
            with limited(scope, limit, jumps=_MAX_JUMPS if is_patient else math.inf):
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
    allowed = VIRTUAL_CALL_SECONDS if is_patient and not has_waited else seconds
    return Outcome(kind="late", seconds=allowed, is_async=is_async, overrun=overrun)


async def waits_indefinitely(function: Callable[..., Any], *args: Any) -> bool:
    """Return whether a call is stuck: no timer, thread, process or connection is left to wake it.

    This can be decided only in virtual time. A stuck call is cancelled. A call that runs for long
    is cancelled as well, without a decision.
    """
    count_call()
    is_stuck = False
    with anyio.CancelScope() as scope:

        def stop() -> None:
            nonlocal is_stuck
            is_stuck = True
            scope.cancel()

        try:
            with when_stuck(stop), limited(scope, waiting_seconds(CALL_SECONDS), jumps=_MAX_JUMPS):
                await function(*args)
        except BaseException as error:  # noqa: BLE001 — foreign code, as above
            reraise_own_cancellation(error)
    return is_stuck


def binding_error(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Return the reason why a function rejects these arguments.

    Return None if it accepts them, or has no readable signature.
    """
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
