"""Where the kernel meets the event loop: its thread, its timers, its tasks and the frames in which they wait.

Almost everything else in the kernel is written once on AnyIO. This file, `uninterrupted` and `asyncio_sections` act differently on each
backend: a request from another thread or from a signal handler must wake the loop (`Loop.soon`), and asyncio has timers without a
task (`start_timer`), which AnyIO cannot express.

Neither backend is imported here: a backend that runs is already in ``sys.modules``.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import logging
import signal
import sys
import threading
import time
from _signal import getsignal as get_handler  # type: ignore[import-not-found]  # those of `signal` have own lines, and are slow
from _signal import signal as set_handler
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from amplifier.contracts._cancellation import cancel_scope, loop_clock, running_asyncio_loop

if TYPE_CHECKING:
    import asyncio

# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


def current_raw_task() -> Any:
    """The backend's own task object, for reports."""
    if running_asyncio_loop() is not None:
        return sys.modules["asyncio"].current_task()
    return sys.modules["trio"].lowlevel.current_task()


def task_name(task: Any) -> str:
    """The name of a backend's own task object."""
    return str(task.get_name() if hasattr(task, "get_name") else getattr(task, "name", task))


def exit_details(exc: BaseException | None) -> tuple[type[BaseException] | None, BaseException | None, Any]:
    """The arguments of ``__aexit__`` for an exception, or for none."""
    return (None, None, None) if exc is None else (type(exc), exc, exc.__traceback__)


def asyncio_context() -> contextvars.Context:
    """A context in which AnyIO recognises asyncio in a callback, where there is no task to recognise it by.

    Without it a callback that starts a task fails under a plain ``asyncio.run()`` as soon as sniffio is installed.
    """
    context = contextvars.copy_context()
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    return context


class Loop:
    """The event loop a session lives on; the only way into it from threads and signal handlers."""

    __slots__ = ("_asyncio_loop", "_trio_token")

    def __init__(self) -> None:
        self._asyncio_loop = running_asyncio_loop()
        self._trio_token: Any = None
        if self._asyncio_loop is None:
            self._trio_token = sys.modules["trio"].lowlevel.current_trio_token()

    def is_running_here(self) -> bool:
        """Whether the calling code runs on this loop."""
        if self._asyncio_loop is not None:
            return running_asyncio_loop() is self._asyncio_loop
        trio = sys.modules["trio"]
        try:
            return trio.lowlevel.current_trio_token() is self._trio_token
        except RuntimeError:
            return False

    def has_ended(self) -> bool:
        """Whether nothing can run on this loop any more."""
        if self._asyncio_loop is not None:
            return bool(self._asyncio_loop.is_closed())
        if self.is_running_here():  # what follows wakes the loop, at a fifth of the cost of a short session
            return False
        trio = sys.modules["trio"]
        try:
            self._trio_token.run_sync_soon(_nothing)
        except trio.RunFinishedError:
            return True
        return False

    def soon(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` on the loop's thread at its next turn; does nothing once the loop has ended."""
        if self._asyncio_loop is not None:
            try:
                self._asyncio_loop.call_soon_threadsafe(fn, context=asyncio_context())
            except NotImplementedError:  # loops that are never called from outside, such as a workflow engine's
                self._asyncio_loop.call_soon(fn, context=asyncio_context())
            except RuntimeError:
                if not self._asyncio_loop.is_closed():
                    raise
            return
        trio = sys.modules["trio"]
        try:
            self._trio_token.run_sync_soon(fn)
        except trio.RunFinishedError:
            return

    def spawn_timer(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Give a timer its task where there is no task group; trio only, asyncio has timers without one."""
        sys.modules["trio"].lowlevel.spawn_system_task(fn)


Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


def start_timer(seconds: float, fn: Callable[[], None], spawn: Spawn | None) -> Callable[[], None]:
    """Call ``fn`` in ``seconds``, unless the returned function is called first.

    Trio has no timer without a task, so it takes one from ``spawn``; without ``spawn`` there is no timer there.
    """
    loop = running_asyncio_loop()
    if loop is not None:
        timer: asyncio.TimerHandle = loop.call_later(seconds, fn, context=asyncio_context())
        return timer.cancel
    if spawn is None:
        return _nothing
    scope = cancel_scope(loop_clock()() + seconds, shield=True)
    is_due = True

    async def wait() -> None:
        with scope:
            await anyio.sleep_forever()
        if is_due:
            fn()

    def stop() -> None:
        nonlocal is_due
        is_due = False
        scope.cancel()

    spawn(wait)
    return stop


def _nothing() -> None:
    return None


# ── native cancels that were held back ────────────────────────────────────────────────────────────


def pending_cancellations(task: Any) -> int:
    """How many cancellation requests of a task have been delivered and not been taken back."""
    return int(task.cancelling()) - bool(getattr(task, "_must_cancel", False))


def deliver_later(task: Any, held: BaseException, requests_before: int) -> None:
    """Give a held native cancel back to its task at its next wait, unless whoever requested it takes it back by then.

    ``asyncio.timeout`` and ``asyncio.TaskGroup`` take their request back with ``uncancel`` as soon as they are left. Before
    Python 3.13 that does not undo a ``cancel`` that is still to be raised, so the request itself must not come earlier.
    """

    def deliver() -> None:
        waits_for = getattr(task, "_fut_waiter", None)
        is_due = getattr(task, "_must_cancel", False) or (waits_for is not None and waits_for.cancelled())
        # A scope may have cancelled it in between: that counts as a request, too, and comes by itself.
        if task.cancelling() > requests_before and not task.done() and not is_due:
            task.uncancel()
            task.cancel(*held.args)

    task.get_loop().call_soon(deliver, context=asyncio_context())


# ── Ctrl-C on asyncio, while the kernel finishes something in order to raise one; see `uninterrupted` ──


_KERNEL = str(Path(__file__).parents[1])
_LIBRARY = Path(logging.__file__).parents[1]
_HELPERS = (
    str(Path(anyio.__file__).parent),
    *(str(_LIBRARY / name) for name in ("asyncio", "logging", "contextlib.py")),
)


class _Interrupts(threading.local):
    """What each thread can do about it.

    Attributes:
        hold: ``before = before or interrupts.hold()``, first in an ``except KeyboardInterrupt``, holds off further ones until `release`. No function
            of ours, so that there is no line between catching one and this; where nothing can be held off it does nothing.
    """

    hold: Callable[[], Any] = int


interrupts: _Interrupts = _Interrupts()


def choose_hold() -> None:
    """See what this thread can do: only the main thread hears signals, and handlers of the application are left alone."""
    handler: Any = get_handler(signal.SIGINT)
    by_asyncio = getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"
    if threading.current_thread() is threading.main_thread() and (by_asyncio or handler is signal.default_int_handler):
        interrupts.hold = functools.partial(set_handler, signal.SIGINT, _answer)
        _hear_signals()
    elif handler is not _answer:
        interrupts.hold = int


def _hear_signals() -> None:
    """Let signals wake the loop; asyncio on Unix asks for that only with a handler of its own, so it gets one that does nothing.

    Without it, a Ctrl-C that arrives just before the loop goes to sleep is heard when something else wakes it: perhaps never.
    """
    loop, unused = running_asyncio_loop(), getattr(signal, "SIGURG", None)
    if loop is None or unused is None or get_handler(unused) != signal.SIG_DFL:
        return
    wakeup = signal.set_wakeup_fd(-1)
    if wakeup != -1:  # the application's own
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    else:
        with suppress(NotImplementedError):
            loop.add_signal_handler(unused, _nothing)  # until the loop is closed


def release(before: Any) -> None:
    """Answer as before to Ctrl-C; whoever found it held off already leaves that to the one who did it."""
    if callable(before) and before is not _answer and get_handler(signal.SIGINT) is _answer:
        set_handler(signal.SIGINT, before)


def _answer(number: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code.co_filename.startswith(_HELPERS):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(_KERNEL):
        raise KeyboardInterrupt


def timestamp() -> str:
    """The current time, such as ``2026-01-31T12:00:00.000001+00:00``: UTC, ISO 8601, microseconds, as on every event."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)  # which virtual clocks replace
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanoseconds // 1000)
    return moment.isoformat(timespec="microseconds")


# ── what a task waits for ──────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, kw_only=True)
class RunningCall:
    """What one object of the kernel is waiting for, read when a session hangs.

    Every kernel class whose methods wait for something has a method ``running_call`` that returns one. The kernel keeps no list of
    its tasks; `amplifier.tracing` asks the objects whose methods are in the chain of awaits of each task.

    Attributes:
        coordinator: Of the session it works for.
        label: What is called: an object of the kernel that knows its module, or words.
        module: Whose code is called, if the label does not name it.
        until: When its deadline is over, by the loop's clock; infinite for "never", None when it sets none.
        goes_on_in: The task in which the work goes on while this one waits for it.
    """

    coordinator: Any = None
    label: Any = None
    module: str | None = None
    until: float | None = None
    goes_on_in: Any = None


_MACHINERY = frozenset({"anyio", "trio", "asyncio", "outcome"})
"""Top-level packages, not folders: a module may well live in a folder of that name."""

_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_NEXT = ("cr_await", "gi_yieldfrom", "ag_await")
_OPAQUE = frozenset({"anext_awaitable", "async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
"""Built-in awaitables that do not expose what they wait for; the garbage collector still knows."""

_LONGEST_CHAIN = 500
"""A longer chain is a loop of wrappers."""


def where_suspended(awaitable: Any) -> str:
    """Name the innermost await of ``awaitable`` as ``file:line in function``; "unknown" when it cannot be seen."""
    best = "unknown"
    for frame in await_chain(awaitable):
        if not is_machinery(frame) and not is_kernel(frame):
            best = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
    return best


def location_of_raise(exc: BaseException) -> str | None:
    """Name the innermost line that an exception passed, as ``file:line in function``, leaving out the event loop's own."""
    best = None
    traceback = exc.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not is_machinery(frame) and not is_kernel(frame):
            best = f"{frame.f_code.co_filename}:{traceback.tb_lineno} in {frame.f_code.co_qualname}"
        traceback = traceback.tb_next
    return best


def forget_frames(errors: Iterable[BaseException]) -> None:
    """Drop the tracebacks of errors that are kept: their frames lead to whoever keeps them, a reference cycle.

    From Python 3.12 on a frame in a traceback keeps all those that called it.
    """
    waiting = list(errors)
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            waiting += [each for each in (error.__cause__, error.__context__) if each is not None]
            waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def await_chain(awaitable: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, outermost first; nothing for what cannot be looked into."""
    for _ in range(_LONGEST_CHAIN):
        if awaitable is None:
            return
        frame = next((f for attr in _FRAMES if (f := getattr(awaitable, attr, None)) is not None), None)
        if isinstance(frame, FrameType):
            yield frame
        awaitable = _awaited(awaitable)


def is_machinery(frame: FrameType) -> bool:
    """Whether a frame is the event loop's own and so does not show what was being done."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _MACHINERY


def is_kernel(frame: FrameType) -> bool:
    """Whether a frame belongs to the kernel itself."""
    return str(frame.f_globals.get("__name__", "")).startswith("amplifier.kernel.")


def _awaited(awaitable: Any) -> Any:
    inner = next((n for attr in _NEXT if (n := getattr(awaitable, attr, None)) is not None), None)
    if inner is None and type(awaitable).__name__ in _OPAQUE:
        for candidate in gc.get_referents(awaitable):
            if inspect.iscoroutine(candidate) or inspect.isasyncgen(candidate) or inspect.isgenerator(candidate):
                return candidate
    return inner
