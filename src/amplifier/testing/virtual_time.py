"""Time that passes only when nothing else can: an hour of timers in a test costs no hour.

`VirtualTimeLoop` is the asyncio side, `virtual_clock` the trio side, and `virtual_backend` gives
either in the form that `anyio.run` and the ``anyio_backend`` fixture take. Importing this file imports neither trio nor
pytest; trio is imported when its clock is asked for.

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

_SLICE = 0.01
"""Real seconds between two looks at whether work outside the loop is still going on."""
_EXACT_SECONDS = 1e6
"""Up to here a sum of times is as exact as asyncio's timers need it."""


class TimeWatch:
    """What happens in virtual time, for a subclass that wants to know it, or to hold the clock; on both backends."""

    def is_busy(self) -> bool:
        """Whether something outside the loop is at work that it does not know of, so that time is real."""
        return False

    def expired(self) -> list[anyio.CancelScope]:
        """Scopes to cancel while time is real."""
        return []

    def on_turn(self) -> None:
        """Called when the loop turns; on trio only with the instruments of `virtual_backend`."""

    def on_jump(self, seconds: float) -> None:
        """Called when the clock has jumped."""

    def on_stuck(self) -> bool:
        """Called when nothing can happen any more: no task, no timer, nothing outside. Returns whether that changed something."""
        return False


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock starts at 0 and jumps to the next timer when nothing is runnable.

    The clock jumps only when the loop is alone. While a worker thread (`anyio.to_thread`, `asyncio.to_thread`,
    ``run_in_executor``, a function as a tool) or a child process is running, or a socket or pipe is open, time passes as it does on the wall,
    because what those will do next cannot be known. Without any timer the loop sleeps until a thread or a file
    descriptor wakes it.

    A thread you started yourself is invisible to the loop: wrap the part that depends on it in `real_time`.

    Attributes:
        watch: What is notified of turns and jumps; a subclass sets its own.
    """

    watch: TimeWatch = TimeWatch()

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._real_time_holds = 0
        self._executor_calls: set[asyncio.Future[Any]] = set()
        self._jumping_selector = _JumpingSelector(self)
        super().__init__(self._jumping_selector)
        # From here on the loop's own wake-up pipe is registered; whatever is added later is I/O of the code under test.
        self._own_descriptors = len(self._jumping_selector.get_map())

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def call_at(  # type: ignore[override]  # as run_in_executor below
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As the base class, except that a timer that is never due, as `anyio.sleep_forever` sets one, is no timer at all.

        The base class would wake up for it once a day, and a virtual day takes no time.
        """
        if math.isinf(when):
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    @contextmanager
    def real_time(self) -> Iterator[None]:
        """Let time pass as on the wall inside the block, for threads the loop cannot see."""
        self._real_time_holds += 1
        try:
            yield
        finally:
            self._real_time_holds -= 1

    def run_in_executor(  # type: ignore[override]  # typeshed spells the arguments with a TypeVarTuple
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """As the base class, and remember that a thread is at work."""
        call = super().run_in_executor(executor, func, *args)
        self._executor_calls.add(call)
        call.add_done_callback(self._executor_calls.discard)
        return call

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As the base class, in real time: it joins threads under a timeout that a jump would make fire at once."""
        with self.real_time():
            await super().shutdown_default_executor(*args, **kwargs)

    def _advance(self, seconds: float, waited: float) -> None:
        """Move the clock; ``waited`` is how much of that was real."""
        self._virtual_now += seconds
        if self._virtual_now > _EXACT_SECONDS:  # rounded down, the timer would never be due
            self._virtual_now = math.nextafter(self._virtual_now, math.inf)
        self.watch.on_jump(max(seconds - waited, 0.0))

    def _wait_without_timer(self) -> None:
        """Called before the loop sleeps until something outside wakes it."""
        # Work that has just ended may have left a message; looking does not take it.
        is_alone = (
            not self._work_outside() and not self._open_io() and not self._jumping_selector.poll()
        )
        if is_alone and self.watch.on_stuck():
            self.call_soon_threadsafe(
                self.watch.on_turn
            )  # or the loop would sleep, whatever the watch has done

    def _work_outside(self) -> bool:
        """Whether a thread or a child process that can wake this loop is known to be busy."""
        for scope in self.watch.expired():
            self.call_soon_threadsafe(
                scope.cancel
            )  # which also ends the wait that this is called from
        return (
            self._real_time_holds > 0
            or bool(self._executor_calls)
            or any(self._is_busy_worker(thread) for thread in threading.enumerate())
            or self.watch.is_busy()
        )

    def _is_busy_worker(self, thread: threading.Thread) -> bool:
        """Whether this is one of AnyIO's worker threads with a call in hand, or a thread that a task of this loop waits for.

        AnyIO hands work over through a queue it marks done only after reporting the result, so a count of zero means
        the loop has been notified already. asyncio waits for a child process in a thread, which has to report its end, also of a child
        whose start was cancelled, or by a descriptor of the loop's, which counts as open I/O. The names are AnyIO's and the standard library's own and read with care: should they vanish, the clock
        merely jumps too early, and `tests/testing/test_virtual_time.py` notices.
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
    """The system's selector, except that waiting for a timer moves the virtual clock instead of sleeping."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop_ref = weakref.ref(
            loop
        )  # the loop owns this object; a strong reference would be a cycle

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
        """What is ready now."""
        return super().select(0)

    def _wait_for_timer(
        self, loop: VirtualTimeLoop, timeout: float
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Let real work go first, in real time; jump over whatever is left once the loop is alone."""
        started = time.monotonic()
        elapsed = 0.0
        events: list[tuple[selectors.SelectorKey, int]] = []
        while elapsed < timeout and (loop._work_outside() or loop._open_io()):
            events = super().select(min(_SLICE, timeout - elapsed))
            elapsed = time.monotonic() - started
            if events:
                break
        else:
            # Work that ended since the last look has already written to the wake-up pipe: its news come first.
            events = self.poll()
        loop._advance(min(elapsed, timeout) if events else timeout, waited=elapsed)
        return events


def virtual_clock(watch: TimeWatch | None = None) -> MockClock:
    """A trio clock that starts at 0 and jumps to the next deadline when every task is blocked.

    While a worker thread is at work, or a task waits for a module on an asyncio island, time passes as on the wall. Unlike
    `VirtualTimeLoop`, trio's clock does not wait for child processes or sockets, unless a watch holds it.

    Args:
        watch: What is notified of jumps, and may hold the clock.

    Raises:
        MissingExtraError: trio is not installed.
    """
    try:
        from trio.testing import MockClock  # noqa: PLC0415 — trio is an optional part
    except ImportError as error:
        raise MissingExtraError("virtual time on trio", extra="trio", missing="trio") from error
    clock = MockClock(autojump_threshold=0)
    # Private: the public threshold jumps while threads and processes are at work.
    jump = clock._autojump
    told = watch or TimeWatch()
    was_quiet = False

    def jump_when_alone() -> None:
        nonlocal was_quiet
        if _waits_for_thread() or told.is_busy():
            was_quiet = False
            for scope in told.expired():
                scope.cancel()
            _pass_real_time(clock)
        elif not was_quiet:  # what has just ended may have left a message, which comes first
            was_quiet = True
        else:
            was_quiet = False
            before = clock.current_time()
            jump()
            seconds = clock.current_time() - before
            if seconds > 0:
                told.on_jump(seconds)
            elif not told.on_stuck():
                time.sleep(_SLICE / 10)

    # The class is final and has no public place for this; `tests/testing/test_virtual_time.py` notices if it vanishes.
    vars(clock)["_autojump"] = jump_when_alone
    return clock


def _waits_for_thread() -> bool:
    """Whether a worker thread of this trio run is at work, or a task waits for an asyncio island."""
    from trio.lowlevel import current_trio_token  # noqa: PLC0415 — trio is an optional part
    from trio.testing import active_thread_count  # noqa: PLC0415
    from trio.to_thread import current_default_thread_limiter  # noqa: PLC0415

    # The count is of threads that a task waits for, whatever their limiter; the limiter knows of abandoned ones, too.
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
    time.sleep(_SLICE / 10)
    until_deadline = current_statistics().seconds_to_next_deadline
    clock.jump(max(0.0, min(time.monotonic() - started, until_deadline)))


def virtual_backend(name: str, watch: TimeWatch | None = None) -> Backend:
    """One backend on virtual time, with a fresh clock.

    The ``anyio_backend`` fixture passes the options on with any AnyIO; `anyio.run` drops those of trio before 4.14.

    Args:
        name: ``"asyncio"`` or ``"trio"``.
        watch: What is notified of turns and jumps, and may hold the clock.

    Raises:
        ValueError: The name is neither.
        MissingExtraError: trio was asked for and is not installed.
    """
    if name == "asyncio":
        watched = (
            VirtualTimeLoop
            if watch is None
            else type("WatchedLoop", (VirtualTimeLoop,), {"watch": watch})
        )
        return ("asyncio", {"loop_factory": watched})
    if name == "trio":
        return (
            "trio",
            {
                "clock": virtual_clock(watch),
                "instruments": [] if watch is None else [_turns(watch)],
            },
        )
    raise ValueError(f"unknown backend {name!r}: expected 'asyncio' or 'trio'")


def _turns(watch: TimeWatch) -> Instrument:
    from trio.abc import Instrument  # noqa: PLC0415 — trio is an optional part

    class Turns(Instrument):
        def before_io_wait(self, timeout: float) -> None:
            watch.on_turn()

    return Turns()
