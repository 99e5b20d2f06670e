"""The event loop: entering it from other threads, its timers, and its tasks.

Almost everything else in the kernel is written once on AnyIO.
"""

from __future__ import annotations

import contextvars
import sys
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio

from amplifier.contracts.cancellation import cancel_scope, current_time, running_asyncio_loop

if TYPE_CHECKING:
    import asyncio

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

# This file treats the backends separately, because AnyIO has no equivalent. A request from another
# thread or from a signal handler must wake the loop although no task waits for it. And on asyncio,
# timers need no task. Neither backend is imported here: a running one is in ``sys.modules``.


def current_raw_task() -> object:
    """Return the backend's own object for the current task."""
    if running_asyncio_loop() is not None:
        return sys.modules["asyncio"].current_task()
    return sys.modules["trio"].lowlevel.current_task()


def task_name(task: object) -> str:
    """Return the name of a backend's own task object."""
    get_name = getattr(task, "get_name", None)
    return str(getattr(task, "name", task) if get_name is None else get_name())


def exit_details(
    exc: BaseException | None,
) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
    """Return the arguments of ``__aexit__`` for an exception, or for none."""
    return (None, None, None) if exc is None else (type(exc), exc, exc.__traceback__)


def asyncio_context() -> contextvars.Context:
    """Return a context in which AnyIO recognises asyncio inside a callback.

    AnyIO recognises the backend by the current task, and a callback has none. Once sniffio is
    imported, starting a task in a callback fails without this context.
    """
    context = contextvars.copy_context()
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    return context


class Loop:
    """The event loop of a session. The only way into it from threads and signal handlers."""

    __slots__ = ("_asyncio_loop", "_trio_token")

    def __init__(self) -> None:
        self._asyncio_loop = running_asyncio_loop()
        self._trio_token: Any = None
        if self._asyncio_loop is None:
            self._trio_token = sys.modules["trio"].lowlevel.current_trio_token()

    def is_running_here(self) -> bool:
        """Return whether the calling code runs on this loop."""
        if self._asyncio_loop is not None:
            return running_asyncio_loop() is self._asyncio_loop
        try:
            return sys.modules["trio"].lowlevel.current_trio_token() is self._trio_token
        except RuntimeError:
            return False

    def has_ended(self) -> bool:
        """Return whether the loop can no longer run anything."""
        if self._asyncio_loop is not None:
            return bool(self._asyncio_loop.is_closed())
        # Waking the loop takes a fifth of the time of a short session.
        if self.is_running_here():
            return False
        try:
            self._trio_token.run_sync_soon(_do_nothing)
        except sys.modules["trio"].RunFinishedError:
            return True
        return False

    def soon(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` on the loop's thread in its next round, unless the loop has ended."""
        if self._asyncio_loop is None:
            try:
                self._trio_token.run_sync_soon(fn)
            except sys.modules["trio"].RunFinishedError:
                return
            return
        try:
            self._asyncio_loop.call_soon_threadsafe(fn, context=asyncio_context())
        except NotImplementedError:
            # Some loops, such as those of workflow engines, refuse calls from other threads.
            self._asyncio_loop.call_soon(fn, context=asyncio_context())
        except RuntimeError:
            if not self._asyncio_loop.is_closed():
                raise

    def spawn_timer(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the task of a timer on trio without a task group."""
        sys.modules["trio"].lowlevel.spawn_system_task(fn)


def start_timer(seconds: float, fn: Callable[[], None], spawn: Spawn | None) -> Callable[[], None]:
    """Call ``fn`` in ``seconds``, unless the returned function is called first.

    On trio a timer needs a task, which ``spawn`` starts. Without ``spawn`` there is no timer on
    trio.
    """
    loop = running_asyncio_loop()
    if loop is not None:
        timer: asyncio.TimerHandle = loop.call_later(seconds, fn, context=asyncio_context())
        return timer.cancel
    if spawn is None:
        return _do_nothing
    scope = cancel_scope(current_time() + seconds, shield=True)
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


def _do_nothing() -> None:
    return None


def timestamp() -> str:
    """Return the time of an event, such as ``2026-01-31T12:00:00.000001+00:00``."""
    # Virtual clocks replace time_ns(), but not datetime.now().
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    # Every event has a timestamp, and using datetime takes twice as long.
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{moment}.{nanoseconds // 1000:06}+00:00"
