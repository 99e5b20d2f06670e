"""Sections: code that must finish, or unwind undisturbed, run where nothing cuts it off.

On asyncio a ``CancelScope(shield=True)`` does not stop a native ``Task.cancel()`` (``asyncio.wait_for``, Ctrl-C, web servers, the end
of ``asyncio.run``), and on trio a ``KeyboardInterrupt`` goes through every shield. Everything in the kernel that must hold goes
through `run_section`.
"""

from __future__ import annotations

import contextvars
import itertools
import math
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from amplifier.contracts._containment import running_asyncio_loop
from amplifier.contracts._scopes import cancel_scope

from .backend import asyncio_context
from .running_call import RunningCall
from .stepping import drive

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


async def run_section(
    fn: Callable[..., Awaitable[T]],
    *args: Any,
    name: str,
    shield: bool = False,
    isolate: bool = False,
    is_unwinding: Callable[[], bool] | None = None,
    on_held: Callable[[], None] | None = None,
) -> T:
    """Run ``fn(*args)`` to its end, keeping away from it what would cut it off; returns only when it has finished.

    On asyncio the section is a child task that only this caller knows: it is taken out of the loop's list of tasks, which the
    end of ``asyncio.run()`` cancels one by one. Native cancels hit the waiting caller only.

    Args:
        fn: What to run; everything foreign in it must have a deadline of its own if ``shield`` is set.
        args: Its arguments.
        name: The name of its task, for reports.
        shield: Hold every cancellation of the caller back until the section has finished, then deliver it. Otherwise the
            first one is passed on in its own kind (a native ``Task.cancel()`` as one, a cancelled scope as a
            level-triggered scope) and later ones wait, so that the unwinding of the section is left in peace.
        isolate: Give the section a copy of the caller's context variables, so that the caller does not see what it sets.
            Otherwise both share one context. A section that is shielded and isolated is protected from Ctrl-C on trio, too.
        is_unwinding: Whether the section is being cancelled already, for a reason of its own: then a native cancel waits.
        on_held: Called when a native cancel is held back for the first time.
    """
    loop = running_asyncio_loop()
    if loop is not None:
        section = _Section(loop, fn, args, name, None if shield else cancel_scope(), isolate)
        return cast(T, await _Supervision(section, shield, is_unwinding, on_held).run())
    if not shield:
        return await (_isolated_on_trio(fn(*args), name) if isolate else fn(*args))
    if isolate:
        return cast(T, await _protected_on_trio(fn, args, name))
    with cancel_scope(shield=True):
        return await fn(*args)
    raise AssertionError("a scope that nothing cancels swallows nothing")


class _Section:
    """A section in its own asyncio task; its outcome is carried to the waiting caller, never raised in the task.

    (A KeyboardInterrupt raised inside an asyncio task would tear the loop down under every session.)
    """

    __slots__ = ("args", "error", "fn", "is_over", "isolate", "loop", "name", "scope", "task", "value", "waiter")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        name: str,
        scope: anyio.CancelScope | None,
        isolate: bool,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.fn: Callable[..., Awaitable[Any]] = fn
        self.args: tuple[Any, ...] = args
        self.name: str = name
        self.scope: anyio.CancelScope | None = scope
        self.isolate: bool = isolate
        self.task: asyncio.Task[None] | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.waiter: SectionWaiter | None = None
        self.is_over: bool = False

    def start(self, context: contextvars.Context) -> None:
        """Give the section its task, which never starts eagerly; ``context`` is that of the caller's task."""
        self.task = new_task(
            self._run(), loop=self.loop, name=self.name, context=context.copy() if self.isolate else context
        )
        hide_from_loop(self.task)
        self.task.add_done_callback(self._wake)

    async def _run(self) -> None:
        try:
            if self.scope is None:
                self.value = await self.fn(*self.args)
            else:
                with self.scope:
                    self.value = await self.fn(*self.args)
        except BaseException as exc:  # noqa: BLE001 — carried over to the waiting caller
            self.error = exc
        # This is the task's last step. Waking the caller here spares it the round that a done callback takes, which is for a
        # task that is cancelled before its first step.
        self._wake()
        if self.task is not None:
            self.task.remove_done_callback(self._wake)

    def _wake(self, _: asyncio.Task[None] | None = None) -> None:
        self.is_over = True
        if self.waiter is not None:
            self.waiter.finish()


class SectionWaiter:
    """The future that the caller of a section awaits, made by hand for two reasons.

    The task that awaits a future hands over its own context object when it registers its callback. Python 3.11 has no
    other way to get at it, and a section that shares the caller's context needs it. And `done` answers for the section, which
    is not in the loop's list of tasks: who asks whether all tasks are blocked looks at what they wait for.
    """

    __slots__ = ("_asyncio_future_blocking", "_callback", "_context", "_error", "_is_finished", "section")

    def __init__(self, section: _Section) -> None:
        self.section: _Section = section
        self._asyncio_future_blocking = False
        self._callback: Callable[[Any], object] | None = None
        self._context: contextvars.Context | None = None
        self._error: BaseException | None = None
        self._is_finished = False

    def __await__(self) -> Generator[Any, Any, None]:
        if not self._is_finished:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Which loop it belongs to; asked by the task that awaits it."""
        return self.section.loop

    def add_done_callback(self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None) -> None:
        """The caller has gone to sleep: this is when the section gets its task."""
        self._callback = fn
        self._context = contextvars.copy_context() if context is None else context
        if self.section.task is None:
            self.section.start(self._context)

    def finish(self) -> None:
        """Wake the caller."""
        if not self._is_finished:
            self._is_finished = True
            callback, context = self._callback, self._context
            self._callback = self._context = None  # they lead to the caller's task and all that it holds
            if callback is not None:
                self.section.loop.call_soon(callback, self, context=context)

    def cancel(self, msg: Any = None) -> bool:
        """The caller is being cancelled; the section is not, that is for the caller to decide."""
        if self._is_finished:
            return False
        self._error = _cancelled_error()(*(() if msg is None else (msg,)))
        self.finish()
        return True

    def cancelled(self) -> bool:
        """Whether the caller is about to be cancelled."""
        return self._error is not None

    def result(self) -> None:
        """Raise the caller's cancellation, if there was one."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # an exception that names its own frame is a reference cycle

    def done(self) -> bool:
        """Whether the caller can go on, or the section can: either way the two together are not blocked."""
        task = self.section.task
        if self._is_finished or task is None:
            return True
        if task is sys.modules["asyncio"].current_task():  # it asks about the others
            return False
        waits_for = getattr(task, "_fut_waiter", None)
        return waits_for is None or bool(waits_for.done())


class _Supervision:
    """The caller's side of a section on asyncio: waits for it and decides about every cancellation that arrives."""

    __slots__ = (
        "_caller",
        "_held",
        "_is_unwinding",
        "_late",
        "_on_held",
        "_requests_before",
        "_section",
        "_shield",
    )

    def __init__(
        self,
        section: _Section,
        shield: bool,
        is_unwinding: Callable[[], bool] | None,
        on_held: Callable[[], None] | None,
    ) -> None:
        self._on_held = on_held
        self._section = section
        self._shield = shield
        self._is_unwinding = is_unwinding
        self._caller = sys.modules["asyncio"].current_task()
        self._requests_before = pending_cancellations(self._caller)
        self._held: BaseException | None = None
        self._late: BaseException | None = None

    async def run(self) -> Any:
        section = self._section
        cancelled = _cancelled_error()
        try:
            while not section.is_over:
                section.waiter = SectionWaiter(section)
                try:
                    if self._held is None and not self._shield:
                        await section.waiter
                    else:  # keeps AnyIO's level-triggered delivery away: what arrives then is native
                        with cancel_scope(shield=True):
                            await section.waiter
                except cancelled as exc:
                    self._take(exc)
            if section.error is not None and not (self._held is not None and isinstance(section.error, cancelled)):
                if self._late is not None:
                    deliver_later(self._caller, self._late, self._requests_before)
                raise section.error
            if self._held is not None:
                raise self._held
            return section.value
        finally:
            # An exception that names its own frame is a reference cycle; sessions must be collectable at once.
            self._held = self._late = self._caller = section.error = section.waiter = None

    def running_call(self) -> RunningCall:
        """The work goes on in another task."""
        return RunningCall(goes_on_in=self._section.task)

    def _take(self, exc: BaseException) -> None:
        """The caller was cancelled while it waited."""
        if self._on_held is not None and self._held is None:
            self._on_held()
        section, task = self._section, self._section.task
        by_scope = anyio.current_effective_deadline() == -math.inf
        if self._held is None and not self._shield and task is not None and not section.is_over:
            if by_scope:
                assert section.scope is not None
                section.scope.cancel()
            elif self._is_unwinding is not None and self._is_unwinding():
                self._late = exc
            else:
                task.cancel(*exc.args)
        elif not by_scope or self._shield:  # a cancelled scope comes again by itself
            self._late = exc
        self._held = self._held or exc


def new_task(
    coro: Coroutine[Any, Any, None], *, loop: asyncio.AbstractEventLoop, name: str, context: contextvars.Context
) -> asyncio.Task[None]:
    """A plain task: a loop's own task factory might start it at once, inside the step of its caller."""
    task: asyncio.Task[None] = sys.modules["asyncio"].Task(coro, loop=loop, name=name, context=context)
    return task


def hide_from_loop(task: asyncio.Task[Any]) -> None:
    """Take a task out of the loop's list, from which the end of ``asyncio.run`` cancels; its owner must wait for it.

    ``asyncio._unregister_task`` is what the documentation names for task implementations. Without it the task stays in the list,
    and only the end of the loop, or a second Ctrl-C, can cut the section off.
    """
    unregister = getattr(sys.modules["asyncio"], "_unregister_task", None)
    if unregister is not None:
        unregister(task)


def pending_cancellations(task: asyncio.Task[Any]) -> int:
    """How many cancellation requests of a task have been delivered and not been taken back."""
    return task.cancelling() - bool(getattr(task, "_must_cancel", False))


def deliver_later(task: asyncio.Task[Any], held: BaseException, requests_before: int) -> None:
    """Give a held native cancel back to its task at its next wait, unless whoever requested it takes it back by then.

    ``asyncio.timeout`` and ``asyncio.TaskGroup`` take their request back with ``uncancel`` as soon as they are left. Before
    Python 3.13 that does not undo a ``cancel`` that is still to be raised, so the request itself must not come earlier.
    """

    def deliver() -> None:
        # A scope may have cancelled it in between: that counts as a request, too, and comes by itself.
        if task.cancelling() > requests_before and not task.done() and not _is_about_to_be_cancelled(task):
            task.uncancel()
            task.cancel(*held.args)

    task.get_loop().call_soon(deliver, context=asyncio_context())


def _is_about_to_be_cancelled(task: asyncio.Task[Any]) -> bool:
    waits_for = getattr(task, "_fut_waiter", None)
    return bool(getattr(task, "_must_cancel", False) or (waits_for is not None and waits_for.cancelled()))


def _cancelled_error() -> type[BaseException]:
    return cast("type[BaseException]", sys.modules["asyncio"].CancelledError)


# ── sections on trio ─────────────────────────────────────────────────────────────────────────────


_QUICK_IN_A_ROW = 8
_quick_sections = itertools.count(1)
"""Of so many sections that wait for nothing, one lets others run. A visit to the scheduler costs as much as half a quick turn."""


_SECTIONS_PER_TASK = 8
_sections_in_task: contextvars.ContextVar[int] = contextvars.ContextVar("sections_in_task", default=0)
"""How many isolated sections this one is nested in, since the last one with a task of its own."""


async def _isolated_on_trio(awaitable: Awaitable[T], name: str) -> T:
    """Await something under a copy of the caller's context variables.

    One that waited for nothing notices a cancellation all the same, and lets others run from time to time: otherwise quick turns
    in a row would keep the others, and a deadline around these turns, from ever getting there.

    Turns of children are nested in those of their parents. All frames of a task count against Python's limit for recursion, so
    every few levels the section gets a task of its own.
    """
    nested = _sections_in_task.get()
    if nested >= _SECTIONS_PER_TASK:

        async def alone() -> T:
            _sections_in_task.set(0)
            return await awaitable

        return cast(T, await _in_child_on_trio(alone, name))
    waited: list[bool] = []
    context = contextvars.copy_context()
    context.run(_sections_in_task.set, nested + 1)
    value = await drive(awaitable, context=context, on_wait=lambda: waited.append(True))
    if not waited:
        lowlevel = sys.modules["trio"].lowlevel
        await lowlevel.checkpoint_if_cancelled()
        if next(_quick_sections) % _QUICK_IN_A_ROW == 0:
            await lowlevel.cancel_shielded_checkpoint()
    return cast(T, value)


_protected: dict[int, types.CodeType] = {}
"""The code that trio protects already, by its id: two equal ones are not the same to trio."""


def protect_from_interrupts(*functions: Any) -> None:
    """Keep Ctrl-C on trio from being raised at a line of these functions, or of what they call, instead of at a wait."""
    trio = sys.modules.get("trio")
    if trio is not None:
        for function in functions:
            if id(function.__code__) not in _protected:
                trio.lowlevel.enable_ki_protection(function)
                _protected[id(function.__code__)] = function.__code__


async def _protected_on_trio(fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], name: str) -> Any:
    """Run a shielded section in a child task, which Ctrl-C does not reach; it is raised in the caller afterwards.

    Trio raises KeyboardInterrupt in the main task, at whatever it waits for, whether that is protected or not.
    """

    async def shielded() -> Any:
        with cancel_scope(shield=True):
            return await fn(*args)

    protect_from_interrupts(shielded)
    return await _in_child_on_trio(shielded, name)


async def _in_child_on_trio(fn: Callable[[], Awaitable[Any]], name: str) -> Any:
    """Run something in a child task and carry its outcome over as if it had run here."""
    outcome: list[Any] = []
    errors: list[BaseException] = []

    async def child() -> None:
        try:
            outcome.append(await fn())
        except BaseException as exc:  # noqa: BLE001 — raised in the caller, unwrapped
            errors.append(exc)

    protect_from_interrupts(child)
    try:
        # Waiting for a nursery's child is not cut short by a cancellation, so the wait itself needs no shield.
        async with sys.modules["trio"].open_nursery() as nursery:
            nursery.start_soon(child, name=name)
    except BaseExceptionGroup as interrupted:  # the child's own errors do not come this way
        raise interrupted.exceptions[0] from (errors[0] if errors else None)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()
    return outcome[0]
