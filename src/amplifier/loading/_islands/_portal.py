"""The portal between trio and one asyncio event loop in a separate thread."""

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

_MAX_INTERVAL: Final = 0.2
"""Maximum time in seconds between two cancellations of a task that doesn't end."""

Post = Callable[[Callable[[], object]], None]
"""Schedules a function in the thread of one side. It can be called from any thread."""

# A caller always waits until its call has ended on the other side. If the caller is cancelled, the
# call is cancelled first. Nothing on trio ever blocks on the island, so calls may be nested to any
# depth without a deadlock. The caller gets the changes that a call makes to context variables, as
# if both were one task.


class _Call:
    """A call that runs on one side while a task of the other side waits for it.

    Args:
        fn: The function, sync or async.
        library: The name of the side on which it runs, "asyncio" or "trio".
        notify: Schedules the notification of the end on the waiting side.

    Attributes:
        name: The name of the function.
        context: The context variables with which it runs.
        done: Set once the call has ended.
        value: The result of the function.
        error: The exception that ended it, or None.
        is_interrupted: True if the waiting task on trio was cancelled.
    """

    def __init__(self, fn: Callable[[], object], library: str, notify: Post) -> None:
        self.name = str(getattr(fn, "__qualname__", None) or fn)
        self.context = _context_for(library)
        self.done = anyio.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        self._fn = fn
        self._notify = notify
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self.is_interrupted: bool = False
        self._waiting: trio.lowlevel.Task | None = None

    async def wait_on_trio(self, tell: Post) -> None:
        """Wait for the end, and pass on a cancellation in the step in which it arrives.

        The cancellation is raised only if it ended the call.
        """
        raised: list[Callable[[], object]] = []

        def abort(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            # The cancellation comes from a scope or from Ctrl-C.
            raised.append(raise_cancel)
            self.is_interrupted = True
            tell(self.cancel)
            return trio.lowlevel.Abort.FAILED

        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
        is_interrupted = self.error is not None and is_cancellation_type(self.error)
        if raised and (is_interrupted or anyio.current_effective_deadline() != -math.inf):
            raised[-1]()

    def end(self) -> None:
        """Wake the waiting task. This runs on its side."""
        self.done.set()
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def live(self) -> None:
        """Run the call in its own task."""
        # Use a scope, because the kernel cancels modules that way on asyncio, not with
        # Task.cancel().
        with cancel_scope() as scope:
            await self.run(scope)

    async def run(self, scope: anyio.CancelScope) -> None:
        """Run the function and report its end."""
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
    """A task that makes successive calls, for an async generator.

    The cancel scopes, task groups and timeouts of a generator belong to the task that opened them.
    A call that is cancelled ends the task. An iterator that can be closed is closed in the last
    call, or when the task is cancelled.
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
        """Queue a call on its own side. The first call starts the task."""
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
        """Close the iterator. This is called in the task."""
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
    """An asyncio event loop in a separate thread, for the asyncio-only modules of one session.

    It is created on trio, which doesn't wait for its start. `stop` must be awaited.
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
        """Return whether any task waits for the island, for virtual clocks.

        A call that itself waits for trio doesn't count, unless it was cancelled. The number of such
        calls equals the number of calls that trio runs for the island.
        """
        on_trio = sum(isinstance(work, _Call) for work in self._on_trio)
        return (
            self._is_stopping
            or len(self._waiting) > on_trio
            or any(call.is_interrupted for call in self._waiting)
        )

    def is_awaited_on(self, token: trio.lowlevel.TrioToken) -> bool:
        """Return whether a task of that trio run waits for the island."""
        return self._token is token and self.is_awaited()

    # ── calls ──

    async def cross(
        self, fn: Callable[[], Any], *, to_trio: bool, resident: Resident | None = None
    ) -> Any:
        """Call a sync or async function on one side and wait for it, from either side.

        A cancellation of the waiting task, native or by a scope, is passed on. Like a local call,
        the call starts even if the task was cancelled before. Unless it is shielded, it is
        interrupted at its first wait. Thus events that a module emits while it unwinds are
        delivered.

        The result of a call in a cancelled scope isn't lost either, because the scope cancels the
        task again at its next wait. A native cancellation, or Ctrl-C, is delivered only once.

        Raises:
            SessionStateError: The island has stopped, or is stopping.
            SpuriousCancellation: The function raised a cancellation that wasn't requested.
            BaseException: The error of the function.
        """
        if self._is_trio() is to_trio:
            answer = fn()
            return await answer if isawaitable(answer) else answer
        if not to_trio and self._loop_ended.is_set():
            raise self._closed_error(None)
        post, notify = self._post, self._post_to_trio
        if to_trio:
            post, notify = notify, post
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
            is_interrupted = error is not None and is_cancellation_type(error)
            if held is not None and (is_interrupted or (is_native and error is None)):
                raise held
            if error is None:
                return call.value
            if isinstance(error, GeneratorExit) or (is_interrupted and self._is_stopping):
                raise self._closed_error(error)
            raise _spurious(error) if is_interrupted else error
        finally:
            waiting.discard(call)
            # Break the reference cycle with the traceback.
            call.error = error = held = None

    def call_trio_now(self, fn: Callable[[], Any]) -> Any:
        """Call a sync function on trio's thread and wait for it, from any thread."""
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
        """Start a task on the side where this is called. It ends with the island at the latest."""
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
        # The system nursery is its parent only in name, because the island ends all its tasks
        # before the session is closed.
        trio.lowlevel.spawn_system_task(live, name=f"island call {work.name}", context=context)

    def _is_trio(self) -> bool:
        return threading.get_ident() == self._trio_thread

    def _post(self, fn: Callable[[], object]) -> None:
        # The loop may have ended, together with all tasks to notify.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(fn)

    def _post_to_trio(self, fn: Callable[[], object]) -> None:
        try:
            self._token.run_sync_soon(fn)
        except trio.RunFinishedError:
            raise self._closed_error(None) from None

    def _closed_error(self, cause: BaseException | None) -> SessionStateError:
        error = SessionStateError(
            f"the asyncio island of session {self._session_id!r} has ended: the session is "
            "closing, and with it its modules that run on asyncio"
        )
        error.__cause__ = cause
        return error

    # ── the end ──

    async def stop(self) -> None:
        """End all tasks of the loop, the loop and its thread, and wait for the thread.

        If this is cancelled, it closes the coroutines of tasks that ignore their cancellation.
        Nothing can end a blocked thread. This method waits for it, and the caller's watchdog
        reports it.
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
        """Run the loop until the session closes, even if modules stop it, and end its tasks."""
        loop = self._loop
        try:
            while not self._is_stopping:
                self._has_run(loop.run_forever)
            for end in (self._end_tasks, loop.shutdown_asyncgens, loop.shutdown_default_executor):
                while not self._has_run(lambda end=end: loop.run_until_complete(end())):  # type: ignore[misc]
                    pass
        finally:
            loop.close()
            # Trio may have ended first, if the session wasn't closed.
            with suppress(SessionStateError):
                self._post_to_trio(self._has_ended)

    def _has_run(self, run: Callable[[], object]) -> bool:
        """Run the loop. Return False if it was interrupted."""
        try:
            run()
        except (SystemExit, KeyboardInterrupt) as exc:
            # Asyncio raises these from the loop if a background task of a module raises them.
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
            # A module, or `stop`, stopped the loop too early.
            return False
        return True

    async def _end_tasks(self) -> None:
        """Cancel every task until it ends. When the time is up, close the remaining coroutines."""
        me, interval, is_last = asyncio.current_task(), 0.05, False
        while (tasks := asyncio.all_tasks() - {me}) and not is_last:
            is_last = self._is_impatient
            for task in tasks:
                if is_last:
                    self._close(task)
                task.cancel()
            await asyncio.wait(tasks, timeout=interval)
            interval = min(interval * 2, _MAX_INTERVAL)

    def _close(self, task: asyncio.Task[object]) -> None:
        logger.error("%r: task %s ignores its cancellation; its coroutine is closed", self, task)
        # Otherwise asyncio would log an exception that was never retrieved.
        task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        coroutine: Any = task.get_coro()
        try:
            coroutine.close()
        # The coroutine awaited again while it was closed, or is running.
        except (RuntimeError, ValueError) as exc:
            logger.error("%r: task %s cannot be closed: %s", self, task.get_name(), exc)


def _spurious(exc: BaseException) -> SpuriousCancellation:
    failure = SpuriousCancellation(
        f"raised {type(exc).__name__} although nothing was cancelled; it may have awaited a future "
        "or task that was"
    )
    failure.__cause__ = exc
    return failure


def _context_for(library: str) -> contextvars.Context:
    """Return a copy of the caller's context variables for code that runs on the other side."""
    context = contextvars.copy_context()
    # AnyIO reads this variable before it looks for a loop.
    context.run(sniffio.current_async_library_cvar.set, library)
    return context


def _take_changes(context: contextvars.Context) -> None:
    """Copy the context variables that were changed on the other side."""
    here = contextvars.copy_context()
    for variable, value in context.items():
        if (
            here.get(variable, context) is not value
            and variable is not sniffio.current_async_library_cvar
        ):
            variable.set(value)
