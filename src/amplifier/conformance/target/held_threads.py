"""Worker threads that start late, so that one left by a cancelled call has yet to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio.to_thread

_HELD_SECONDS = 0.05
"""Time after which a thread continues that a cancelled call waits for."""
_ENDING_SECONDS = 1.0


class HeldThreads:
    """The functions that were handed to worker threads, each of which waits until it is released.

    Attributes:
        count: Number of functions.
        begun: Number of functions whose thread has started. A cancelled one may never start.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.begun: int = 0
        self._gate = threading.Event()
        self._running = 0
        self._changed = threading.Condition()

    def holding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function for the thread, which waits before it calls the original."""
        self.count += 1

        def late(*args: Any, **kwargs: Any) -> Any:
            with self._changed:
                self.begun += 1
                self._running += 1
            self._gate.wait(_HELD_SECONDS)
            try:
                return function(*args, **kwargs)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        return late

    async def let_go(self) -> None:
        """Let all of them run, and wait until they have ended."""
        self._gate.set()
        await anyio.to_thread.run_sync(self._wait)

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, _ENDING_SECONDS)


@contextmanager
def hold_threads() -> Iterator[HeldThreads]:
    """Hold the worker threads that are used in the body, of AnyIO and of executors."""
    held = HeldThreads()
    run_sync, submit = anyio.to_thread.run_sync, ThreadPoolExecutor.submit

    async def run_late(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await run_sync(held.holding(function), *args, **kwargs)

    def submit_late(
        pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        return submit(pool, held.holding(function), *args, **kwargs)

    changed: Any = anyio.to_thread, ThreadPoolExecutor
    changed[0].run_sync, changed[1].submit = run_late, submit_late
    try:
        yield held
    finally:
        changed[0].run_sync, changed[1].submit = run_sync, submit
