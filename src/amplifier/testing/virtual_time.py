"""Virtual time: the clock jumps to the next deadline when every task waits.

`VirtualTimeLoop` is for asyncio, `virtual_clock` for trio, and `virtual_backend` returns either in
the form that `anyio.run` and the ``anyio_backend`` fixture take. trio is imported on first use.

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request):
        return virtual_backend(request.param)
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, final

import anyio

from amplifier.errors import MissingExtraError

if TYPE_CHECKING:
    from trio.abc import Instrument
    from trio.testing import MockClock

__all__ = [
    "Backend",
    "TimeWatch",
    "VirtualTimeLoop",
    "virtual_backend",
    "virtual_clock",
]

Backend = tuple[str, dict[str, Any]]
"""A backend's name and its options, as `anyio.run` and the ``anyio_backend`` fixture take them."""

_POLL_SECONDS = 0.01
"""Real seconds between two checks for work outside the loop."""
_EXACT_SECONDS = 1e6
"""Largest sum of times that is exact enough for asyncio's timers."""


class TimeWatch:
    """Observer of virtual time on both backends. A subclass can also hold the clock."""

    def is_busy(self) -> bool:
        """Return whether unknown work outside the loop is running, so that time is real."""
        return False

    def expired(self) -> list[anyio.CancelScope]:
        """Return scopes to cancel while time is real."""
        return []

    def on_turn(self) -> None:
        """React to a turn of the loop. trio needs the instruments of `virtual_backend`."""

    def on_jump(self, seconds: float) -> None:
        """React to a jump of the clock."""

    def on_stuck(self) -> bool:
        """React when no task, timer or outside work can run. Return whether that changed."""
        return False


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock starts at 0 and jumps to the next timer when nothing is runnable.

    The clock jumps only when the loop is alone. Time is real while a worker thread
    (`anyio.to_thread`, `asyncio.to_thread`, ``run_in_executor``, a function as a tool) or a child
    process is running, or a socket or pipe is open, because their next action can't be predicted.
    Without any timer the loop sleeps until a thread or a file descriptor wakes it.

    The loop isn't aware of threads that you start yourself. Wrap the part that depends on them in
    `real_time`.

    Attributes:
        watch: The observer of turns and jumps. A subclass sets its own.
    """

    watch: TimeWatch = TimeWatch()

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._real_time_holds = 0
        self._executor_calls: set[asyncio.Future[Any]] = set()
        self._jumping_selector = _JumpingSelector(self)
        super().__init__(self._jumping_selector)
        # The loop's own wake-up pipe is registered by now. Later descriptors are I/O of the code
        # under test.
        self._own_descriptors = len(self._jumping_selector.get_map())

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual_now

    def call_at(  # type: ignore[override]  # as run_in_executor below
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer, unless it is never due, such as the one of `anyio.sleep_forever`.

        The base class would wake up for such a timer once a day, and a virtual day takes no time.
        """
        if math.isinf(when):
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    @contextmanager
    def real_time(self) -> Iterator[None]:
        """Use real time inside the block, for threads that the loop can't see."""
        self._real_time_holds += 1
        try:
            yield
        finally:
            self._real_time_holds -= 1

    # typeshed spells the arguments with a TypeVarTuple.
    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in an executor, and remember that a thread is busy."""
        call = super().run_in_executor(executor, func, *args)
        self._executor_calls.add(call)
        call.add_done_callback(self._executor_calls.discard)
        return call

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Join the threads in real time, because a jump would make the timeout expire at once."""
        with self.real_time():
            await super().shutdown_default_executor(*args, **kwargs)

    def _advance(self, seconds: float, waited: float) -> None:
        """Move the clock. ``waited`` is the real part of the seconds."""
        self._virtual_now += seconds
        # If the sum were rounded down, the timer would never be due.
        if self._virtual_now > _EXACT_SECONDS:
            self._virtual_now = math.nextafter(self._virtual_now, math.inf)
        self.watch.on_jump(max(seconds - waited, 0.0))

    def _wait_without_timer(self) -> None:
        """Notify the watch before the loop sleeps until something outside wakes it."""
        # Work that has just ended may have left a message. Polling doesn't consume it.
        is_alone = (
            not self._work_outside() and not self._open_io() and not self._jumping_selector.poll()
        )
        if is_alone and self.watch.on_stuck():
            # Otherwise the loop would sleep in spite of the change.
            self.call_soon_threadsafe(self.watch.on_turn)

    def _work_outside(self) -> bool:
        """Return whether a thread or a child process that can wake this loop is busy."""
        for scope in self.watch.expired():
            # This also ends the wait from which this method is called.
            self.call_soon_threadsafe(scope.cancel)
        return (
            self._real_time_holds > 0
            or bool(self._executor_calls)
            or any(self._is_busy_worker(thread) for thread in threading.enumerate())
            or self.watch.is_busy()
        )

    def _is_busy_worker(self, thread: threading.Thread) -> bool:
        """Return whether a thread is a busy worker of AnyIO, or a task of this loop waits for it.

        AnyIO marks an item of a worker's queue done only after reporting the result, so at a count
        of zero the loop has been notified. asyncio waits for a child process in a thread, even for
        a child whose start was cancelled, or by a descriptor of the loop, which counts as open I/O.
        These names are internals of AnyIO and the standard library. If they vanish, the clock jumps
        too early, and `tests/testing/test_virtual_time.py` fails.
        """
        if thread.name.startswith("asyncio-waitpid-"):
            return self in getattr(thread, "_args", ())
        if getattr(thread, "loop", None) is not self:
            return hasattr(thread, "is_awaited_on") and bool(thread.is_awaited_on(self))
        return bool(getattr(getattr(thread, "queue", None), "unfinished_tasks", 0))

    def _open_io(self) -> bool:
        return len(self._jumping_selector.get_map()) > self._own_descriptors


@final
class _JumpingSelector(selectors.DefaultSelector):
    """The system's selector, but a wait for a timer moves the virtual clock instead of sleeping."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        # The loop owns this object, so a strong reference would be a cycle.
        self._loop_ref = weakref.ref(loop)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self.poll()
        loop = self._loop_ref()
        if loop is not None:
            loop.watch.on_turn()
        if events or (timeout is not None and timeout <= 0):
            return events
        if loop is None:
            return super().select(timeout)
        if timeout is None:
            loop._wait_without_timer()
            return super().select(None)
        return self._wait_for_timer(loop, timeout)

    def poll(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready events."""
        return super().select(0)

    def _wait_for_timer(
        self, loop: VirtualTimeLoop, timeout: float
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time while real work is running. Jump over the rest."""
        started = time.monotonic()
        elapsed = 0.0
        events: list[tuple[selectors.SelectorKey, int]] = []
        while elapsed < timeout and (loop._work_outside() or loop._open_io()):
            events = super().select(min(_POLL_SECONDS, timeout - elapsed))
            elapsed = time.monotonic() - started
            if events:
                break
        else:
            # Work that ended since the last check has written to the wake-up pipe, which has to be
            # read first.
            events = self.poll()
        loop._advance(min(elapsed, timeout) if events else timeout, waited=elapsed)
        return events


def virtual_clock(watch: TimeWatch | None = None) -> MockClock:
    """Return a trio clock that starts at 0 and jumps when every task is blocked.

    Time is real while a worker thread is busy, or a task waits for a module on an asyncio island.
    Unlike `VirtualTimeLoop`, trio's clock doesn't wait for child processes or sockets, unless a
    watch holds it.

    Args:
        watch: Observes jumps, and may hold the clock.

    Raises:
        MissingExtraError: trio is not installed.
    """
    try:
        from trio.testing import MockClock  # noqa: PLC0415 — trio is an optional part
    except ImportError as error:
        raise MissingExtraError("virtual time on trio", extra="trio", missing="trio") from error
    clock = MockClock(autojump_threshold=0)
    # This is private, but the public threshold jumps while threads and processes are busy.
    jump = clock._autojump
    observer = watch or TimeWatch()
    was_quiet = False

    def jump_when_alone() -> None:
        nonlocal was_quiet
        if _waits_for_thread() or observer.is_busy():
            was_quiet = False
            for scope in observer.expired():
                scope.cancel()
            _pass_real_time(clock)
        # Work that has just ended may have left a message, which has to be read first.
        elif not was_quiet:
            was_quiet = True
        else:
            was_quiet = False
            before = clock.current_time()
            jump()
            seconds = clock.current_time() - before
            if seconds > 0:
                observer.on_jump(seconds)
            elif not observer.on_stuck():
                time.sleep(_POLL_SECONDS / 10)

    # The class is final and has no public hook. If the name vanishes,
    # `tests/testing/test_virtual_time.py` fails.
    vars(clock)["_autojump"] = jump_when_alone
    return clock


def _waits_for_thread() -> bool:
    """Return whether a worker thread of this run is busy, or a task waits for an island."""
    from trio.lowlevel import current_trio_token  # noqa: PLC0415 — trio is an optional part
    from trio.testing import active_thread_count  # noqa: PLC0415
    from trio.to_thread import current_default_thread_limiter  # noqa: PLC0415

    # This counts threads that a task waits for, with any limiter. The limiter also counts
    # abandoned ones.
    if active_thread_count() or current_default_thread_limiter().borrowed_tokens:
        return True
    token = current_trio_token()
    return any(
        hasattr(thread, "is_awaited_on") and thread.is_awaited_on(token)
        for thread in (threading.enumerate() if threading.active_count() > 1 else ())
    )


def _pass_real_time(clock: MockClock) -> None:
    from trio.lowlevel import current_statistics  # noqa: PLC0415 — trio is an optional part

    started = time.monotonic()
    time.sleep(_POLL_SECONDS / 10)
    until_deadline = current_statistics().seconds_to_next_deadline
    clock.jump(max(0.0, min(time.monotonic() - started, until_deadline)))


def virtual_backend(name: str, watch: TimeWatch | None = None) -> Backend:
    """Return a backend on virtual time, with a fresh clock.

    The ``anyio_backend`` fixture passes the options to any version of AnyIO. `anyio.run` before
    4.14 ignores those of trio.

    Args:
        name: ``"asyncio"`` or ``"trio"``.
        watch: Observes turns and jumps, and may hold the clock.

    Raises:
        ValueError: The name is unknown.
        MissingExtraError: trio was requested and is not installed.
    """
    if name == "asyncio":
        loop_class: type = VirtualTimeLoop
        if watch is not None:
            loop_class = type("WatchedLoop", (VirtualTimeLoop,), {"watch": watch})
        return ("asyncio", {"loop_factory": loop_class})
    if name == "trio":
        instruments = [] if watch is None else [_turns(watch)]
        return ("trio", {"clock": virtual_clock(watch), "instruments": instruments})
    raise ValueError(f"unknown backend {name!r}: expected 'asyncio' or 'trio'")


def _turns(watch: TimeWatch) -> Instrument:
    from trio.abc import Instrument  # noqa: PLC0415 — trio is an optional part

    class Turns(Instrument):
        def before_io_wait(self, timeout: float) -> None:
            watch.on_turn()

    return Turns()
