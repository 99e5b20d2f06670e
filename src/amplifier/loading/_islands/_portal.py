"""The portal between trio and one asyncio event loop in a thread of its own.

A caller always waits until the other side has ended, also when it is cancelled: then the other side is cancelled first. Nothing on
trio ever blocks on the island, so calls may be nested to any depth without a deadlock. What a call sets in context variables is seen
by its caller afterwards, as if both were one task.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Final

import anyio
import sniffio
import trio

from amplifier.contracts.cancellation import cancel_scope, is_cancellation_type
from amplifier.errors import SessionStateError, SpuriousCancellation

logger: logging.Logger = logging.getLogger("amplifier.islands")

_LONGEST_INTERVAL: Final = 0.2
"""Seconds between two cancellations of a task that does not end."""

Post = Callable[[Callable[[], object]], None]
"""Has something called soon in the thread of one side; from any thread."""


class _Call:
    """A function that runs on one side while a task of the other side waits for its end, which is reported through ``notify``."""

    def __init__(self, fn: Callable[[], Any], library: str, notify: Post) -> None:
        self.name = str(getattr(fn, "__qualname__", None) or fn)
        self.context = _context_for(library)
        self.done = anyio.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        self._fn = fn
        self._notify = notify
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self.is_cut_off: bool = False
        self._waiting: trio.lowlevel.Task | None = None

    async def wait_on_trio(self, tell: Post) -> None:
        """Wait for the end. A cancellation is passed on in the step in which it comes, and raised only if the call is cut off by it."""
        raised: list[Callable[[], Any]] = []

        def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
            raised.append(raise_cancel)  # of a scope, or of Ctrl-C
            self.is_cut_off = True
            tell(self.cancel)
            return trio.lowlevel.Abort.FAILED

        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
        is_cut_off = self.error is not None and is_cancellation_type(self.error)
        if raised and (is_cut_off or anyio.current_effective_deadline() != -math.inf):
            raised[-1]()

    def end(self) -> None:
        self.done.set()
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def live(self) -> None:
        # A scope and not Task.cancel(): asyncio-only modules are cancelled as the kernel cancels them on asyncio.
        with cancel_scope() as scope:
            await self.run(scope)

    async def run(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        if self._is_cancelled:
            scope.cancel()
        try:
            answer = self._fn()
            self.value = await answer if isawaitable(answer) else answer
        except BaseException as exc:  # noqa: BLE001 — raised by the waiting task
            self.error = exc
        finally:
            self._scope = None
            self._notify(self.end)


class Resident:
    """A task that makes one call after another, for what needs one task: async generators, which context managers are made into.

    Their cancel scopes, task groups and timeouts belong to the task that opened them. A call that is cancelled ends the task; an
    iterator that can be closed is closed in the last call, or when the task is cancelled.
    """

    def __init__(self, iterator: Any) -> None:
        self.name = f"stream {iterator!r}"
        self.is_over: bool = False
        self._iterator = iterator
        self._calls: deque[_Call] = deque()
        self._asked: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self._is_last = False

    def take(self, island: Island, call: _Call) -> None:
        """Make a call, after those before it; the first one starts the task. On its own side."""
        if self.is_over:
            island.spawn(call, call.context)
            return
        if self._scope is None and not self._calls:
            island.spawn(self, call.context.copy())
        self._calls.append(call)
        if self._asked is not None:
            self._asked.set()

    def cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def end(self) -> None:
        """Close the iterator; called in the task."""
        self._is_last = True
        if hasattr(self._iterator, "aclose"):
            await self._iterator.aclose()

    async def live(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                while not self._is_last:
                    try:
                        while not self._calls:
                            self._asked = anyio.Event()
                            await self._asked.wait()
                    except BaseException:
                        await self.end()
                        raise
                    await self._calls.popleft().run(self._scope)
        except BaseException as exc:
            if not is_cancellation_type(exc):
                logger.exception("%s failed while it was closed", self.name)
        finally:
            self.is_over = True
            while self._calls:
                await self._calls.popleft().live()


class Island(threading.Thread):
    """An asyncio event loop in a thread of its own, for the asyncio-only modules of one session on trio.

    Made on trio; starting it takes no time there. `stop` must be awaited.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__(name=f"amplifier asyncio island of {session_id}", daemon=True)
        self._session_id = session_id
        self._token = trio.lowlevel.current_trio_token()
        self._trio_thread = threading.get_ident()
        self._loop_ended, self._idle = trio.Event(), trio.Event()
        self._is_stopping = self._is_impatient = False
        self._waiting: set[_Call] = set()
        self._on_trio: set[_Call | Resident] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self.start()

    def __repr__(self) -> str:
        state = "stopped" if not self.is_alive() else "stopping" if self._is_stopping else "running"
        return f"<asyncio island of session {self._session_id!r}, {state}>"

    def is_awaited(self) -> bool:
        """Whether anything waits for the island; virtual clocks ask.

        A call whose code waits for trio in turn does not count, unless it was cancelled: as many as trio is busy with for the island.
        """
        on_trio = sum(isinstance(work, _Call) for work in self._on_trio)
        return (
            self._is_stopping
            or len(self._waiting) > on_trio
            or any(call.is_cut_off for call in self._waiting)
        )

    def is_awaited_on(self, token: trio.lowlevel.TrioToken) -> bool:
        """Whether a task of that trio run waits for the island."""
        return self._token is token and self.is_awaited()

    # ── calls ──

    async def cross(
        self, fn: Callable[[], Any], *, to_trio: bool, resident: Resident | None = None
    ) -> Any:
        """Call a sync or async function on one side and wait for it; from the other side, or in place.

        A cancellation of the waiting task, native or by a scope, is passed on. The call begins even if the task is cancelled
        already, as a call here would: it is cut off at its first wait unless it is shielded. So what is emitted while a module
        unwinds is delivered, and what a call returns in a cancelled scope is not lost: the scope cancels the task again at its
        next wait. A native cancel, or Ctrl-C, comes only once.

        Raises:
            SessionStateError: The island has stopped, or stops.
            SpuriousCancellation: The function raised a cancellation that was not requested.
            BaseException: What it raised.
        """
        if self._is_trio() is to_trio:
            answer = fn()
            return await answer if isawaitable(answer) else answer
        if not to_trio and self._loop_ended.is_set():
            raise self._closed_error(None)
        post, notify = (
            (self._post_to_trio, self._post) if to_trio else (self._post, self._post_to_trio)
        )
        call = _Call(fn, "trio" if to_trio else "asyncio", notify)
        waiting = set[_Call]() if to_trio else self._waiting
        held: BaseException | None = None
        is_native = False
        waiting.add(call)
        post(
            partial(self.spawn, call, call.context)
            if resident is None
            else partial(resident.take, self, call)
        )
        try:
            while not call.done.is_set():
                try:
                    if held is None and not to_trio:
                        await call.wait_on_trio(post)
                        continue
                    with cancel_scope(shield=held is not None):
                        await call.done.wait()
                except BaseException as exc:  # noqa: BLE001 — raised when the call has ended
                    is_native = (
                        is_native
                        or held is not None
                        or anyio.current_effective_deadline() != -math.inf
                    )
                    if held is None:
                        post(call.cancel)
                    held = exc
            _take_changes(call.context)
            error = call.error
            is_cut_off = error is not None and is_cancellation_type(error)
            if held is not None and (is_cut_off or (is_native and error is None)):
                raise held
            if error is None:
                return call.value
            if isinstance(error, GeneratorExit) or (is_cut_off and self._is_stopping):
                raise self._closed_error(error)
            raise _spurious(error) if is_cut_off else error
        finally:
            waiting.discard(call)
            call.error = error = held = (
                None  # an exception that names its own frame is a reference cycle
            )

    def call_trio_now(self, fn: Callable[[], Any]) -> Any:
        """Call a sync function on trio's thread and wait for it; from any thread."""
        if self._is_trio():
            return fn()
        context, values = _context_for("trio"), []
        try:
            trio.from_thread.run_sync(
                lambda: values.append(context.run(fn)), trio_token=self._token
            )
        except trio.RunFinishedError:
            raise self._closed_error(None) from None
        finally:
            _take_changes(context)
        return values[0]

    def spawn(self, work: _Call | Resident, context: contextvars.Context) -> None:
        """Start a task on the side where this is called; the island ends it at the latest."""
        if not self._is_trio():
            task = asyncio.Task(work.live(), loop=self._loop, name=work.name, context=context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return

        async def live() -> None:
            try:
                await work.live()
            finally:
                self._on_trio.discard(work)
                if not self._on_trio:
                    self._idle.set()

        self._on_trio.add(work)
        # The system nursery is the parent in name only: the island ends all its work before the session is closed.
        trio.lowlevel.spawn_system_task(live, name=f"island call {work.name}", context=context)

    def _is_trio(self) -> bool:
        return threading.get_ident() == self._trio_thread

    def _post(self, fn: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it whoever would be notified
            self._loop.call_soon_threadsafe(fn)

    def _post_to_trio(self, fn: Callable[[], object]) -> None:
        try:
            self._token.run_sync_soon(fn)
        except trio.RunFinishedError:
            raise self._closed_error(None) from None

    def _closed_error(self, cause: BaseException | None) -> SessionStateError:
        error = SessionStateError(
            f"the asyncio island of session {self._session_id!r} has ended: the session closes, and with it its modules "
            "that run on asyncio"
        )
        error.__cause__ = cause
        return error

    # ── the end ──

    async def stop(self) -> None:
        """End all tasks of the loop, the loop and its thread; returns when the thread has ended.

        Cancelled, it closes the coroutines of tasks that ignore their cancellation. A thread that blocks cannot be ended by
        anything: it is waited for, and the caller's watchdog reports that.
        """
        self._is_stopping = True
        self._post(self._loop.stop)
        try:
            await self._loop_ended.wait()
        finally:
            self._is_impatient = True
            with trio.CancelScope(shield=True):
                await self._loop_ended.wait()
                while self._on_trio:
                    self._idle = trio.Event()
                    for work in list(self._on_trio):
                        work.cancel()
                    await self._idle.wait()
                self.join()

    def _has_ended(self) -> None:
        self._loop_ended.set()
        for call in self._waiting:
            if not call.done.is_set():
                call.error = self._closed_error(None)
                call.end()

    # ── the thread ──

    def run(self) -> None:
        """Run the loop until the session closes, whatever modules do to it, and end what is left in it."""
        loop = self._loop
        try:
            while not self._is_stopping:
                self._has_run(loop.run_forever)
            for end in (self._end_tasks, loop.shutdown_asyncgens, loop.shutdown_default_executor):
                while not self._has_run(lambda end=end: loop.run_until_complete(end())):  # type: ignore[misc]
                    pass
        finally:
            loop.close()
            with suppress(SessionStateError):  # trio ended first: the session was not closed
                self._post_to_trio(self._has_ended)

    def _has_run(self, run: Callable[[], object]) -> bool:
        """Run the loop; False if it was interrupted."""
        try:
            run()
        except (SystemExit, KeyboardInterrupt) as exc:
            # Asyncio raises these out of the loop when a task that a module started by itself raises them.
            logger.error(
                "a background task of a module on %r raised %s",
                self,
                type(exc).__name__,
                exc_info=exc,
            )
            return False
        except RuntimeError:
            if self._loop.is_closed():
                raise
            return False  # a module, or `stop`, stopped the loop before it was through
        return True

    async def _end_tasks(self) -> None:
        """Cancel every task until it ends; close the coroutines of those that do not when there is no more time."""
        me, interval, is_last = asyncio.current_task(), 0.05, False
        while (tasks := asyncio.all_tasks() - {me}) and not is_last:
            is_last = self._is_impatient
            for task in tasks:
                if is_last:
                    self._close(task)
                task.cancel()
            await asyncio.wait(tasks, timeout=interval)
            interval = min(interval * 2, _LONGEST_INTERVAL)

    def _close(self, task: asyncio.Task[Any]) -> None:
        logger.error("%r: task %s ignores its cancellation; its coroutine is closed", self, task)
        task.add_done_callback(
            lambda task: None if task.cancelled() else task.exception()
        )  # or asyncio would log it
        coroutine: Any = task.get_coro()
        try:
            coroutine.close()
        except (RuntimeError, ValueError) as exc:  # it awaits in spite of that, or is running
            logger.error("%r: task %s cannot be closed: %s", self, task.get_name(), exc)


def _spurious(exc: BaseException) -> SpuriousCancellation:
    failure = SpuriousCancellation(
        f"raised {type(exc).__name__} although nothing was cancelled; it may have awaited a future or task that was"
    )
    failure.__cause__ = exc
    return failure


def _context_for(library: str) -> contextvars.Context:
    """A copy of the caller's context variables for code that runs on the other side."""
    context = contextvars.copy_context()
    context.run(
        sniffio.current_async_library_cvar.set, library
    )  # AnyIO asks it before it looks for a loop
    return context


def _take_changes(context: contextvars.Context) -> None:
    """Set the context variables that were changed on the other side."""
    here = contextvars.copy_context()
    for variable, value in context.items():
        if (
            here.get(variable, context) is not value
            and variable is not sniffio.current_async_library_cvar
        ):
            variable.set(value)
