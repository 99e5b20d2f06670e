"""Where the kernel meets the event loop: sections that hold under native cancellation, the loop's clock, its thread.

Everything else in the kernel is written once on AnyIO. This is the only kernel file that knows which backend runs,
because three things cannot be said in AnyIO alone:

* On asyncio a ``CancelScope(shield=True)`` does not stop a native ``Task.cancel()`` (``asyncio.wait_for``, Ctrl-C, web
  servers, an impatient second Ctrl-C). `run_shielded` and `run_guarded` therefore run their section as a child task
  there and keep the caller waiting until it is done; native cancels hit only the waiting caller. On trio both are plain.
* A request from another thread or from a signal handler must wake the loop (`Loop.soon`).
* A timer without a task of its own, where the backend has one (`start_timer`).

Neither backend is imported here: a backend that runs is already in ``sys.modules``.
"""

from __future__ import annotations

import contextvars
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from amplifier.contracts._containment import running_asyncio_loop

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_UNSET: Any = object()

# asyncio.Task(eager_start=True). Python 3.12 has it, too, but there a cancel that such a task's first step brings upon its caller
# cannot be taken back and strikes at some later await.
_CAN_START_AT_ONCE = sys.version_info >= (3, 13)


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


# ── sections ─────────────────────────────────────────────────────────────────────────────────────


class _Section:
    """A section in its own asyncio task; its outcome is carried to the waiting caller, never raised in the task.

    (A KeyboardInterrupt raised inside an asyncio task would tear the loop down under everybody.)
    """

    __slots__ = ("error", "loop", "scope", "value", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, scope: anyio.CancelScope | None) -> None:
        self.loop = loop
        self.scope = scope
        self.value: Any = _UNSET
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[None] | None = None

    def start(self, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], name: str) -> asyncio.Task[None]:
        """Give the section its task."""
        loop = self.loop
        if _makes_plain_tasks(loop):
            # It runs up to its first real wait right here; one that has none costs no turn of the loop at all.
            make_task: Any = sys.modules["asyncio"].Task
            task: asyncio.Task[None] = make_task(self._run(fn, args), loop=loop, name=name, eager_start=True)
        else:
            task = loop.create_task(self._run(fn, args), name=name)
        if not task.done():
            task.add_done_callback(self._wake)
        return task

    async def _run(self, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        try:
            if self.scope is None:
                self.value = await fn(*args)
            else:
                with self.scope:
                    self.value = await fn(*args)
        except BaseException as exc:  # noqa: BLE001 — carried over to the waiting caller
            self.error = exc
        # This is the task's last step. Waking the caller here spares it the round that a done callback takes.
        self._wake()

    def _wake(self, _: asyncio.Task[None] | None = None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def done(self) -> None:
        """Wait for the task without passing our own cancellation on to it, which ``await task`` would do."""
        self.waiter = self.loop.create_future()
        if self.value is not _UNSET or self.error is not None:
            self.loop.call_soon(self._wake)
        await self.waiter


def _makes_plain_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop's tasks are asyncio's own, so that we may make one ourselves that starts at once."""
    if not _CAN_START_AT_ONCE:
        return False
    usual = sys.modules["asyncio"].BaseEventLoop.create_task
    return getattr(type(loop), "create_task", None) is usual and loop.get_task_factory() is None


def is_section(coro: object) -> bool:
    """Whether a coroutine is a section's, for task factories: outside of them it starts at once from Python 3.13 on."""
    return getattr(coro, "cr_code", None) is _Section._run.__code__


async def run_guarded(
    fn: Callable[..., Awaitable[T]], *args: Any, name: str, is_unwinding: Callable[[], bool] | None = None
) -> T:
    """Run ``fn(*args)`` so that a cancellation of the caller reaches it once and its unwinding is left in peace.

    Returns only when ``fn`` has finished. The first cancellation is passed on in its own kind: a native
    ``Task.cancel()`` as one, a cancelled surrounding scope as a level-triggered scope. Later ones wait; they are not lost
    when ``fn`` answers the first one with an error of its own. So does a native one that finds ``fn`` unwinding already,
    from a cancellation that did not come from the caller.
    """
    loop = running_asyncio_loop()
    if loop is None:
        return await fn(*args)
    scope = cancel_scope()
    section = _Section(loop, scope)
    task = section.start(fn, args, name)
    cancelled_error = cast("type[BaseException]", sys.modules["asyncio"].CancelledError)
    held: BaseException | None = None
    late: BaseException | None = None
    # One that started at once and waited for nothing lets the others run all the same, or quick turns in a row would keep
    # them, and a timeout around these turns, from ever getting there.
    owes_a_turn = task.done()
    try:
        while owes_a_turn or not task.done():
            owes_a_turn = False
            try:
                if held is None:
                    await section.done()
                else:
                    with cancel_scope(shield=True):
                        await section.done()
            except cancelled_error as exc:
                by_scope = anyio.current_effective_deadline() == -math.inf
                if held is None and not task.done():
                    if by_scope:
                        scope.cancel()
                    elif is_unwinding is not None and is_unwinding():
                        late = exc
                    else:
                        task.cancel(*exc.args)
                elif not by_scope:  # a cancelled scope comes again by itself
                    late = exc
                held = held or exc
        if section.error is not None and not (held is not None and isinstance(section.error, cancelled_error)):
            if late is not None:
                _deliver_later(late)
            raise section.error
        if held is not None:
            raise held
        return cast(T, section.value)
    finally:
        # An exception that names its own frame is a reference cycle; sessions must be collectable at once.
        held = late = None
        section.error = None


async def run_shielded(fn: Callable[..., Awaitable[T]], *args: Any, name: str) -> T:
    """Run ``fn(*args)`` to its end whatever happens to the caller; cancellation is delivered afterwards.

    The section must bound itself: everything foreign in it runs under a deadline of its own.
    """
    loop = running_asyncio_loop()
    if loop is not None:
        return await _shielded_on_asyncio(loop, fn, args, name)
    with cancel_scope(shield=True):
        return await fn(*args)
    raise AssertionError("a scope that nobody cancels swallows nothing")


async def _shielded_on_asyncio(
    loop: asyncio.AbstractEventLoop, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...], name: str
) -> T:
    section = _Section(loop, None)
    task = section.start(fn, args, name)
    cancelled_error = cast("type[BaseException]", sys.modules["asyncio"].CancelledError)
    held: BaseException | None = None
    try:
        # The shield keeps AnyIO's level-triggered delivery away, so what arrives here is native.
        with cancel_scope(shield=True):
            while not task.done():
                try:
                    await section.done()
                except cancelled_error as exc:
                    held = exc
        if section.error is not None:
            if held is not None:
                _deliver_later(held)
            raise section.error
        if held is not None:
            raise held
        return cast(T, section.value)
    finally:
        held = None
        section.error = None


def _deliver_later(held: BaseException) -> None:
    """Give a held native cancel back to the current task, to be raised at its next await."""
    task = sys.modules["asyncio"].current_task()
    task.uncancel()
    task.cancel(*held.args)


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


def loop_clock() -> Callable[[], float]:
    """The running loop's clock as a bare function; AnyIO's looks the backend up at every call."""
    loop = running_asyncio_loop()
    return loop.time if loop is not None else cast(Callable[[], float], sys.modules["trio"].current_time)


def current_raw_task() -> Any:
    """The backend's own task object, for reports."""
    if running_asyncio_loop() is not None:
        return sys.modules["asyncio"].current_task()
    return sys.modules["trio"].lowlevel.current_task()


def _asyncio_context() -> contextvars.Context:
    """A context in which AnyIO recognises asyncio in a callback, where there is no task to recognise it by.

    Without it a callback that starts a task fails under a plain ``asyncio.run()`` as soon as sniffio is installed.
    """
    context = contextvars.copy_context()
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    return context


class Loop:
    """The event loop a session lives on; the only door into it from threads and signal handlers."""

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

    def soon(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` on the loop's thread at its next turn; does nothing once the loop has ended."""
        if self._asyncio_loop is not None:
            try:
                self._asyncio_loop.call_soon_threadsafe(fn, context=_asyncio_context())
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
        timer: asyncio.TimerHandle = loop.call_later(seconds, fn, context=_asyncio_context())
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
