"""Blocking functions in daemon threads. A cancelled call leaves its thread behind, which blocks neither other calls nor the end of the program.

AnyIO's own threads do both: asyncio's are waited for when Python exits, and on trio an abandoned one keeps its place in the limiter.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio._core._eventloop import threadlocals  # which `anyio.from_thread` reads, and nothing public sets

_Result = TypeVar("_Result")

_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("amplifier-threads")


async def call_in_thread(call: Callable[[], _Result], name: str) -> _Result:
    """Call a function in a daemon thread; calls begin in the order in which this is awaited.

    `anyio.from_thread` works in it; ``check_cancelled`` raises there once this was cancelled.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    thread = _CallThread(call, name)
    limiter = _limiter.get(None)
    if limiter is None:
        _limiter.set(limiter := anyio.CapacityLimiter(40))
    try:  # without a wait where there is a place, so that nothing comes between this call and the next one
        limiter.acquire_on_behalf_of_nowait(thread)
    except anyio.WouldBlock:
        await limiter.acquire_on_behalf_of(thread)
    try:
        thread.start()
        thread.begun.acquire()
        await thread.ended.wait()
        return thread.outcome.result()
    finally:
        thread.is_left = True
        limiter.release_on_behalf_of(thread)
        del thread  # which holds an error, whose traceback holds this frame


class _CallThread(threading.Thread, Generic[_Result]):
    """The thread of one call. `anyio.from_thread` takes it for the backend, and virtual clocks ask whether a task waits for it."""

    def __init__(self, call: Callable[[], _Result], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._call = call
        self._context = contextvars.copy_context()
        if (sniffio := sys.modules.get("sniffio")) is not None:  # the function may run an event loop of its own
            self._context.run(sniffio.current_async_library_cvar.set, None)
        self._token = anyio.lowlevel.current_token()
        self.outcome = Future[_Result]()
        self.ended = anyio.Event()
        self.is_left = False
        self.begun = threading.Lock()
        self.begun.acquire()

    def run(self) -> None:
        threadlocals.current_token = anyio.lowlevel.EventLoopToken(self, None)  # type: ignore[arg-type]
        self.begun.release()
        try:
            self.outcome.set_result(self._context.run(self._call))
        except BaseException as error:  # noqa: BLE001 — raised in the task
            self.outcome.set_exception(error)
        if not self.is_left:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                anyio.from_thread.run_sync(self.ended.set, token=self._token)

    def is_awaited(self) -> bool:
        return not self.is_left

    def is_awaited_on(self, loop: object) -> bool:
        return self.is_awaited() and self._token.native_token is loop

    def run_async_from_thread(self, function: Any, args: Any, token: None) -> Any:
        return self._token.backend_class.run_async_from_thread(function, args, self._token.native_token)

    def run_sync_from_thread(self, function: Any, args: Any, token: None) -> Any:
        return self._token.backend_class.run_sync_from_thread(function, args, self._token.native_token)

    def check_cancelled(self) -> None:
        if self.is_left:
            raise SystemExit  # ends the function; no one sees it
