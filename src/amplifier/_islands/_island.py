"""The island of one session: a thread with an asyncio event loop, and the way into it and out of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from inspect import isawaitable
from typing import Any, Final

import trio

from amplifier.contracts._containment import running_asyncio_loop
from amplifier.errors import SessionStateError

from ._border import Border
from ._calls import Errand, Visit, call_trio_now
from ._protocol import Work

logger: logging.Logger = logging.getLogger("amplifier.islands")

THREAD_NAME: Final = "amplifier asyncio island"
"""Beginning of the names of the threads."""
_FIRST_INTERVAL: Final = 0.05
_LONGEST_INTERVAL: Final = 0.2
"""Seconds between two cancellations of a task that does not end."""


class IslandThread(threading.Thread):
    """The thread of an island.

    Attributes:
        visits: Calls from trio that wait for it.
        token: The trio run they come from.
        is_stopping: The session waits for its end.
    """

    visits: set[Visit]
    token: trio.lowlevel.TrioToken
    is_stopping: bool = False

    def is_awaited_on(self, token: trio.lowlevel.TrioToken) -> bool:
        """Whether a task of that trio run waits for the island."""
        return self.token is token and self.is_awaited()

    def is_awaited(self) -> bool:
        """Whether anything waits for the island."""
        return self.is_stopping or bool(self.visits)


class Island:
    """An asyncio event loop in a thread of its own, for the asyncio-only modules of one session on trio.

    Made on trio; starting it takes no time there. `stop` must be awaited.

    Args:
        session_id: Names the thread.

    Attributes:
        loop: The event loop.
        border: Wraps what crosses between the loop and trio.
        visits: Calls from trio that wait for the loop; used on trio's thread.
        is_stopping: The session closes; nothing new is begun.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._token = trio.lowlevel.current_trio_token()
        self._trio_thread = threading.get_ident()
        self._ended = trio.Event()
        self._idle = trio.Event()
        self._is_impatient = False
        self.is_stopping: bool = False
        self.visits: set[Visit] = set()
        self._work_on_trio: set[Work] = set()
        self._residents: set[asyncio.Task[None]] = set()
        self.border: Border = Border(self)
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._thread = IslandThread(target=self._run, name=f"{THREAD_NAME} of {session_id}", daemon=True)
        self._thread.visits = self.visits
        self._thread.token = self._token
        self._thread.start()

    def __repr__(self) -> str:
        state = "stopped" if not self._thread.is_alive() else "stopping" if self.is_stopping else "running"
        return f"<asyncio island of session {self._session_id!r}, {state}>"

    # ── calls ──

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a sync or async function in the loop and wait for it; from trio, or in place from the loop itself.

        Raises:
            SessionStateError: The island has stopped.
            SpuriousCancellation: It raised a cancellation that was not requested.
            BaseException: What it raised.
        """
        if not self.is_on_trio():
            answer = fn(*args, **kwargs)
            return await answer if isawaitable(answer) else answer
        if self._ended.is_set():
            raise self.closed_error(None)
        return await Visit(self, fn, args, kwargs).run()

    async def call_trio(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a sync or async function on trio and wait for it; from the loop, or in place from trio itself."""
        if self.is_on_trio():
            answer = fn(*args, **kwargs)
            return await answer if isawaitable(answer) else answer
        return await Errand(self, fn, args, kwargs).run()

    def call_trio_now(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a sync function on trio's thread and wait for it; from any thread."""
        return fn(*args, **kwargs) if self.is_on_trio() else call_trio_now(self, fn, args, kwargs)

    def is_on_trio(self) -> bool:
        """Whether the calling code runs on trio's thread."""
        return threading.get_ident() == self._trio_thread

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Start a task on the side where this is called; ``fn`` raises nothing and ends when the island stops."""
        if running_asyncio_loop() is not None:
            task = self.loop.create_task(fn(), name=name)
            self._residents.add(task)
            task.add_done_callback(self._residents.discard)
            return
        trio.lowlevel.spawn_system_task(fn, name=name, context=copy_context())

    def post(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` in the loop soon; from any thread. Does nothing once the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(fn)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def post_to_trio(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` on trio's thread soon; from any thread.

        Raises:
            SessionStateError: Trio has ended.
        """
        try:
            self._token.run_sync_soon(fn)
        except trio.RunFinishedError:
            raise self.closed_error(None) from None

    def has_begun(self, work: Work) -> None:
        """Something that the island asked for runs on trio; on trio's thread."""
        self._work_on_trio.add(work)

    def has_left(self, work: Work) -> None:
        """It has ended."""
        self._work_on_trio.discard(work)
        if not self._work_on_trio:
            self._idle.set()

    def closed_error(self, cause: BaseException | None) -> SessionStateError:
        """The error of a call that comes too late, or is cut off by the end of the island."""
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
        self.is_stopping = self._thread.is_stopping = True
        self.post(self.loop.stop)
        try:
            await self._end()
        except BaseException:
            self._is_impatient = True
            self._cancel_work_on_trio()
            with trio.CancelScope(shield=True):
                await self._end()
            raise

    async def _end(self) -> None:
        await self._ended.wait()
        while self._work_on_trio:
            self._idle = trio.Event()
            self._cancel_work_on_trio()
            await self._idle.wait()
        self._thread.join()

    def _cancel_work_on_trio(self) -> None:
        for work in list(self._work_on_trio):
            work.cancel()

    def _has_ended(self) -> None:
        """The thread is about to end; on trio's thread."""
        self._ended.set()
        for visit in list(self.visits):
            visit.fail(self.closed_error(None))

    # ── the thread ──

    def _run(self) -> None:
        loop = self.loop
        try:
            while not self.is_stopping:
                self._has_run(loop.run_forever)
            for end in (self._end_tasks, loop.shutdown_asyncgens, loop.shutdown_default_executor):
                while not self._has_run(lambda end=end: loop.run_until_complete(end())):  # type: ignore[misc]
                    pass
        finally:
            loop.close()
            with suppress(SessionStateError):  # trio ended first: the session was not closed
                self.post_to_trio(self._has_ended)

    def _has_run(self, run: Callable[[], object]) -> bool:
        """Run the loop; False if it was interrupted."""
        try:
            run()
        except (SystemExit, KeyboardInterrupt) as exc:
            # Asyncio raises these out of the loop when a task that a module started by itself raises them.
            logger.error("a background task of a module on %r raised %s", self, type(exc).__name__, exc_info=exc)
            return False
        except RuntimeError:
            if self.loop.is_closed():
                raise
            return False  # a module, or `stop`, stopped the loop before it was through
        return True

    async def _end_tasks(self) -> None:
        """Cancel every task until it ends; close the coroutines of those that do not when there is no more time."""
        me = asyncio.current_task()
        interval = _FIRST_INTERVAL
        while tasks := asyncio.all_tasks() - {me}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=interval)
            interval = min(interval * 2, _LONGEST_INTERVAL)
            if self._is_impatient:
                await self._close(asyncio.all_tasks() - {me})
                return

    async def _close(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            logger.error("%r: task %s ignores its cancellation; its coroutine is closed", self, task)
            coroutine: Any = task.get_coro()
            try:
                coroutine.close()
            except (RuntimeError, ValueError) as exc:  # it awaits in spite of that, or is running
                logger.error("%r: task %s cannot be closed: %s", self, task.get_name(), exc)
            task.cancel()
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=_LONGEST_INTERVAL)
            for task in done:
                _ = None if task.cancelled() else task.exception()  # retrieved, or asyncio would log it
