"""Sections on asyncio: each in a child task that only its caller knows; see `uninterrupted` for what they are and why.

Imported when the first section runs on asyncio: an application on trio never pays for importing asyncio.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, cast

import anyio

from amplifier.contracts._cancellation import cancel_scope

from .backend import RunningCall, deliver_later, interrupts, pending_cancellations, release


class SectionWaiter:
    """What the caller of a section awaits: a future, whose methods are a plain future's.

    Only `done` is ours: it answers for the section, which is not in the loop's list of tasks, when someone asks whether all tasks are
    blocked. What asyncio itself calls runs no line of ours, which Ctrl-C could hit: a task interrupted there would never go on. No subclass
    of a future: AnyIO cancels no task that awaits a future which is done, and this one says so whenever the section can go on.
    """

    def __init__(self, section: Section, future: asyncio.Future[None]) -> None:
        self._future = future
        self._asyncio_future_blocking = False
        self.add_done_callback: Callable[..., None] = future.add_done_callback
        self.cancel: Callable[..., bool] = future.cancel
        self.cancelled: Callable[[], bool] = future.cancelled
        self.get_loop: Callable[[], asyncio.AbstractEventLoop] = future.get_loop
        self.section: Section = section

    def __await__(self) -> Generator[Any, Any, None]:
        if not self._future.done():
            self._asyncio_future_blocking = True
            yield self
        self._future.result()

    def done(self) -> bool:
        """Whether the caller can go on, or the section can: either way the two together are not blocked."""
        task = self.section.task
        if self._future.done() or task is None:
            return True
        if task is asyncio.current_task():  # it asks about the others
            return False
        waits_for = getattr(task, "_fut_waiter", None)
        return waits_for is None or bool(waits_for.done())


class Section:
    """A section and the caller who waits for it and decides about every cancellation that arrives.

    The outcome is carried to the caller, never raised in the task: a KeyboardInterrupt raised there would tear the loop down under
    every session.
    """

    def __init__(
        self,
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        name: str,
        shield: bool,
        isolate: bool,
        is_unwinding: Callable[[], bool] | None,
        on_held: Callable[[], None] | None,
    ) -> None:
        self._fn = fn
        self._args = args
        self._name = name
        self._scope = None if shield else cancel_scope()
        self._isolate = isolate
        self._is_unwinding = is_unwinding
        self._on_held = on_held
        self._caller = cast("asyncio.Task[Any]", asyncio.current_task())
        self._requests_before = pending_cancellations(self._caller)
        self._attempt: object = None
        self._future: asyncio.Future[None] | None = None
        self._is_over = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._held: BaseException | None = None
        self._late: BaseException | None = None
        self._interrupt: BaseException | None = None
        self.task: asyncio.Task[None] | None = None

    def running_call(self) -> RunningCall:
        """The work goes on in another task."""
        return RunningCall(goes_on_in=self.task)

    # ── the caller's side ──

    async def run(self) -> Any:
        """Wait until the section is over, and return or raise its outcome."""
        before = None
        try:
            while not self._is_over:
                try:
                    await self._wait()
                except KeyboardInterrupt as exc:  # raised at a line of ours: the section must not be left alone
                    before = before or interrupts.hold()
                    self._interrupt = exc
                    if self._scope is not None:
                        self._scope.cancel()
            if self._interrupt is not None:
                raise self._interrupt
            error = self._error
            if error is not None and not (self._held is not None and isinstance(error, asyncio.CancelledError)):
                if self._late is not None:
                    deliver_later(self._caller, self._late, self._requests_before)
                raise error
            if self._held is not None:
                raise self._held
            return self._value
        finally:
            if before:
                release(before)
            # An exception that names its own frame is a reference cycle; sessions must be collectable at once.
            error = self._held = self._late = self._interrupt = self._error = self._future = None
            del self._caller

    async def _wait(self) -> None:
        task = self.task or self._start()
        while not self._is_over:
            self._future = self._caller.get_loop().create_future()
            task.add_done_callback(self._future.cancel)  # wakes us in any case, and by no line of ours
            waiter = SectionWaiter(self, self._future)
            try:
                if self._held is None and self._scope is not None:
                    await waiter
                else:  # keeps AnyIO's level-triggered delivery away: what arrives then is native
                    with cancel_scope(shield=True):
                        await waiter
            except asyncio.CancelledError as exc:
                if exc.args and exc.args[0] is task:
                    self._note_end(task)
                else:
                    self._take(exc)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Its task has ended without waking us: cancelled before its first step, or interrupted outside of its work."""
        error = None if task.cancelled() else task.exception()
        if not self._is_over:
            self._error, self._is_over = error, True

    def _take(self, exc: BaseException) -> None:
        """The caller was cancelled while it waited."""
        scope, task = self._scope, self.task
        is_first, self._held = self._held is None, self._held or exc
        if is_first and self._on_held is not None:
            self._on_held()
        by_scope = anyio.current_effective_deadline() == -math.inf
        if self._is_over or task is None or scope is None:
            if not by_scope or scope is None:  # a cancelled scope comes again by itself
                self._late = exc
        elif by_scope:
            scope.cancel()
        elif not is_first:
            self._late = exc
            scope.cancel()
        elif self._is_unwinding is not None and self._is_unwinding():
            self._late = exc
        else:
            task.cancel(*exc.args)

    # ── the section's side ──

    def _start(self) -> asyncio.Task[None]:
        """Give the section its task, which never starts eagerly and is not in the loop's list."""
        # Interrupted before its task is kept, it is started again; the first task then finds that it is not meant.
        mine = self._attempt = object()
        context = contextvars.copy_context() if self._isolate else _context_of(self._caller)
        self.task = new_task(self._run(mine), loop=self._caller.get_loop(), name=self._name, context=context)
        _hide_from_loop(self.task)
        return self.task

    async def _run(self, mine: object) -> None:
        try:
            if mine is not self._attempt:
                return
            try:
                if self._scope is None:
                    self._value = await self._fn(*self._args)
                else:
                    with self._scope:
                        self._value = await self._fn(*self._args)
            except BaseException as exc:  # noqa: BLE001 — carried over to the waiting caller
                self._error = exc
            self._is_over = True
            # This is the task's last step. Waking the caller here spares it the round that a done callback takes.
            self._wake()
        except KeyboardInterrupt as exc:
            self._error, self._is_over = exc, True

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            with suppress(asyncio.InvalidStateError):  # Ctrl-C can cancel it between asking and setting
                self._future.set_result(None)


def new_task(
    coro: Coroutine[Any, Any, None], *, loop: asyncio.AbstractEventLoop, name: str, context: contextvars.Context
) -> asyncio.Task[None]:
    """A plain task: a loop's own task factory might start it at once, inside the step of its caller."""
    return asyncio.Task(coro, loop=loop, name=name, context=context)


def _context_of(task: asyncio.Task[Any]) -> contextvars.Context:
    """The context of a task itself, not a copy of it, which only Python 3.12 and later give out."""
    get_context = getattr(task, "get_context", None)
    if get_context is not None:
        return cast(contextvars.Context, get_context())
    return next(each for each in gc.get_referents(task) if type(each) is contextvars.Context)


def _hide_from_loop(task: asyncio.Task[Any]) -> None:
    """Take a task out of the loop's list, from which the end of ``asyncio.run`` cancels; its owner must wait for it.

    ``asyncio._unregister_task`` is what the documentation names for task implementations. Without it the task stays in the list,
    and only the end of the loop, or a second Ctrl-C, can cut the section off.
    """
    unregister = getattr(asyncio, "_unregister_task", None)
    if unregister is not None:
        unregister(task)
