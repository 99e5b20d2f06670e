"""A thread with an asyncio event loop, for the SDK of Temporal, which needs one: the same on asyncio and trio."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from amplifier.kernel.runtime.backend import Loop

from .._errors import closed_error

T = TypeVar("T")

logger = logging.getLogger("amplifier.durable")

_ENDING_SECONDS = 10.0
_NAME = "Temporal"


class AsyncioThread:
    """The way into the thread, and back to the event loop it was made on, here called the host."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._host = Loop()
        self._is_closed = False

    async def call(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await an async function in the thread; from the host. A cancellation is passed on and not waited for.

        Raises:
            EngineClosedError: The thread was ended, before the call or meanwhile.
        """
        ended = anyio.Event()
        future = self.start(partial(fn, *args), ended.set)
        try:
            await ended.wait()
        except BaseException:
            future.cancel()
            raise
        try:
            return future.result()
        except CancelledError:
            raise closed_error(_NAME) from None

    def start(self, fn: Callable[[], Awaitable[T]], on_end: Callable[[], None]) -> Future[T]:
        """Start an async function in the thread; ``on_end`` is called on the host when it has ended.

        Raises:
            EngineClosedError: The thread was ended.
        """
        if self._is_closed:
            raise closed_error(_NAME)
        future: Future[T] = self._portal.start_task_soon(fn)
        future.add_done_callback(lambda _: self._host.soon(on_end))
        return future

    def post(self, fn: Callable[[], object]) -> None:
        """Call a function in the thread soon; from the host. Does nothing once the thread was ended."""
        if not self._is_closed:
            self._portal.start_task_soon(fn)

    def post_to_host(self, fn: Callable[[], object]) -> None:
        """Call a function on the host soon; from the thread."""
        self._host.soon(fn)

    def close(self) -> None:
        """Take no more calls; from the host."""
        self._is_closed = True


@asynccontextmanager
async def open_asyncio_thread() -> AsyncIterator[AsyncioThread]:
    """Start a thread; on leaving, what still runs there is cancelled and the thread waited for, but not for ever."""
    manager = start_blocking_portal("asyncio")
    portal = await anyio.to_thread.run_sync(manager.__enter__)
    thread = AsyncioThread(portal)
    has_ended = anyio.Event()

    def end() -> None:
        try:
            portal.call(portal.stop, True)
            manager.__exit__(None, None, None)
        finally:
            thread.post_to_host(has_ended.set)

    try:
        yield thread
    finally:
        thread.close()
        # No thread of AnyIO's: one that does not end would keep the process from ending.
        Thread(target=end, daemon=True).start()
        with anyio.move_on_after(_ENDING_SECONDS, shield=True) as scope:
            await has_ended.wait()
        if scope.cancelled_caught:
            logger.warning("the thread of the Temporal SDK did not end in time and is left behind")
