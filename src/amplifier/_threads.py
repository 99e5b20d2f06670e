"""Blocking functions in daemon threads. A cancelled call leaves its thread behind, which blocks neither other calls nor the end of the program.

AnyIO's own threads do both: asyncio's are waited for when Python exits, and on trio an abandoned one keeps its place in the limiter.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio._core._eventloop import (
    threadlocals,
)  # what `anyio.from_thread` reads; it has no public way to a thread of one's own

_Result = TypeVar("_Result")

_MOST = 40
_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("amplifier-threads")


async def call_in_thread(call: Callable[[], _Result], name: str) -> _Result:
    """Call a function in a daemon thread; calls begin in the order in which this is awaited.

    `anyio.from_thread` works in it; ``check_cancelled`` raises there once this was cancelled.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    thread = _CallThread(call, name)
    limiter = _limiter.get(None)
    if limiter is None:
        _limiter.set(limiter := anyio.CapacityLimiter(_MOST))
    try:  # without a wait where there is a place, so that nothing comes between this call and the next one
        limiter.acquire_on_behalf_of_nowait(thread)
    except anyio.WouldBlock:
        await limiter.acquire_on_behalf_of(thread)
    try:
        thread.begin()
        await thread.ended.wait()
    finally:
        thread.is_left = True
        limiter.release_on_behalf_of(thread)
    return thread.result()


class _Left(BaseException):
    """Ends a function that asks whether it was cancelled; no one sees it."""


class _CallThread(threading.Thread, Generic[_Result]):
    """The thread of one call, and for `anyio.from_thread` its way into the event loop."""

    def __init__(self, call: Callable[[], _Result], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._call: Callable[[], _Result] | None = call
        self._context = contextvars.copy_context()
        if (sniffio := sys.modules.get("sniffio")) is not None:  # the function may run an event loop of its own
            self._context.run(sniffio.current_async_library_cvar.set, None)
        self._token = anyio.lowlevel.current_token()
        self._begun = threading.Lock()
        self._values: list[_Result] = []
        self._error: BaseException | None = None
        self.ended = anyio.Event()
        self.is_left = False

    def begin(self) -> None:
        """Start, and return when the function is about to be called."""
        self._begun.acquire()
        self.start()
        with self._begun:
            pass

    def run(self) -> None:
        """Call the function and report its end to the event loop."""
        threadlocals.current_token = anyio.lowlevel.EventLoopToken(self, None)  # type: ignore[arg-type]
        call, self._call = self._call, None
        assert call is not None
        self._begun.release()
        try:
            self._values.append(self._context.run(call))
        except BaseException as error:  # noqa: BLE001 — raised by `result`
            self._error = error
        del call
        if not self.is_left:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                anyio.from_thread.run_sync(self.ended.set, token=self._token)

    def result(self) -> _Result:
        """What the function returned, or raises what it raised."""
        error, self._error = self._error, None
        if error is None:
            return self._values[0]
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    # ── virtual clocks ask ──

    def is_awaited(self) -> bool:
        """Whether a task waits for it."""
        return not self.is_left

    def is_awaited_on(self, loop: object) -> bool:
        """Whether a task of this loop waits for it."""
        return self.is_awaited() and self._token.native_token is loop

    # ── `anyio.from_thread` asks the backend, in whose place this is ──

    def run_async_from_thread(self, function: Any, args: Any, token: None) -> Any:
        """`anyio.from_thread.run`."""
        return self._token.backend_class.run_async_from_thread(function, args, token=self._token.native_token)

    def run_sync_from_thread(self, function: Any, args: Any, token: None) -> Any:
        """`anyio.from_thread.run_sync`."""
        return self._token.backend_class.run_sync_from_thread(function, args, token=self._token.native_token)

    def check_cancelled(self) -> None:
        """`anyio.from_thread.check_cancelled`."""
        if self.is_left:
            raise _Left
