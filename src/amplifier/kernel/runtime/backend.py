"""Where the kernel meets the event loop: its scopes, its clock, its thread, its timers.

Everything else in the kernel is written once on AnyIO. This file and `sections` are the only ones that act differently on each
backend: a request from another thread or from a signal handler must wake the loop (`Loop.soon`), and asyncio has timers without a
task (`start_timer`), which AnyIO cannot express.

Neither backend is imported here: a backend that runs is already in ``sys.modules``.
"""

from __future__ import annotations

import contextvars
import math
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from amplifier.contracts._containment import running_asyncio_loop

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_scope_classes: dict[bool, type[anyio.CancelScope]] = {}


def cancel_scope(deadline: float = math.inf, *, shield: bool = False) -> anyio.CancelScope:
    """A scope of the running backend.

    The same as ``anyio.CancelScope(…)``, which looks its backend up every time and, because it is then made through another
    class, is initialised twice. That is a fifth of what a short-lived scope costs.
    """
    on_asyncio = running_asyncio_loop() is not None
    try:
        return _scope_classes[on_asyncio](deadline=deadline, shield=shield)
    except KeyError:
        scope = anyio.CancelScope(deadline=deadline, shield=shield)
        _scope_classes[on_asyncio] = type(scope)
        return scope


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


def loop_clock() -> Callable[[], float]:
    """The running loop's clock as a bare function; AnyIO's looks the backend up at every call, trio's the running loop."""
    loop = running_asyncio_loop()
    if loop is not None:
        return cast("Callable[[], float]", loop.time)
    return cast("Callable[[], float]", sys.modules["trio"].lowlevel.current_clock().current_time)


def current_raw_task() -> Any:
    """The backend's own task object, for reports."""
    if running_asyncio_loop() is not None:
        return sys.modules["asyncio"].current_task()
    return sys.modules["trio"].lowlevel.current_task()


def task_name(task: Any) -> str:
    """The name of a backend's own task object."""
    return str(task.get_name() if hasattr(task, "get_name") else getattr(task, "name", task))


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
    scope = cancel_scope(shield=True)

    async def wait() -> None:
        with scope:
            await anyio.sleep(seconds)
            fn()

    spawn(wait)
    return scope.cancel


def _nothing() -> None:
    return None
