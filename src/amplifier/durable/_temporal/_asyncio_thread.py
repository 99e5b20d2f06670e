"""A thread with an asyncio event loop, for the SDK of Temporal, which needs one: the same on asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from amplifier.kernel.runtime.backend import Loop

T = TypeVar("T")


class AsyncioThread:
    """The way into the thread, and back to the event loop it was made on, here called the host."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._host = Loop()

    async def call(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await an async function in the thread; from the host. A cancellation is passed on and not waited for."""
        ended = anyio.Event()
        future: Future[T] = self._portal.start_task_soon(fn, *args)
        future.add_done_callback(lambda _: self._host.soon(ended.set))
        try:
            await ended.wait()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def start(self, fn: Callable[[], Awaitable[None]], on_end: Callable[[], None]) -> Future[None]:
        """Start an async function in the thread; ``on_end`` is called on the host when it has ended."""
        future: Future[None] = self._portal.start_task_soon(fn)
        future.add_done_callback(lambda _: self._host.soon(on_end))
        return future

    def post(self, fn: Callable[[], object]) -> None:
        """Call a function in the thread soon; from the host."""
        self._portal.start_task_soon(fn)

    def post_to_host(self, fn: Callable[[], object]) -> None:
        """Call a function on the host soon; from the thread."""
        self._host.soon(fn)


@asynccontextmanager
async def open_asyncio_thread() -> AsyncIterator[AsyncioThread]:
    """Start a thread; on leaving, what still runs there is cancelled and the thread waited for."""
    manager = start_blocking_portal("asyncio")
    portal = await anyio.to_thread.run_sync(manager.__enter__)

    def end() -> None:
        portal.call(portal.stop, True)
        manager.__exit__(None, None, None)

    try:
        yield AsyncioThread(portal)
    finally:
        with anyio.CancelScope(shield=True):  # every call there ends when it is cancelled
            await anyio.to_thread.run_sync(end)
