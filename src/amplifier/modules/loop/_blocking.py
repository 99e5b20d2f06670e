"""Log the tools that block the event loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Coroutine, Generator
from time import perf_counter
from types import CodeType, CoroutineType, FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")
_logger = logging.getLogger("amplifier.modules.turn")

BLOCKING_SECONDS = 1.0
_last = threading.local()


# Neither backend has a hook for this that is free while nothing blocks. The debug mode of asyncio
# and the instruments of trio slow down every task. Timing one step of this coroutine takes a
# quarter of a microsecond. In every other way the object stands in for the coroutine. For example,
# tracebacks and task listings follow `cr_await` into the tool.


class named_if_blocking(Coroutine[Any, Any, _T]):
    """Await a tool's coroutine, and log the tool if a step of it blocks the event loop.

    Args:
        coroutine: The call to the tool.
        tool: The name of the tool.
    """

    __slots__ = ("_coroutine", "_tool")

    def __init__(self, coroutine: CoroutineType[Any, Any, _T], tool: str) -> None:
        self._coroutine = coroutine
        self._tool = tool

    def __await__(self) -> Generator[Any, Any, _T]:
        """Return this object, which has the methods of a generator."""
        return self  # type: ignore[return-value]

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Run the next step."""
        began = perf_counter()
        try:
            return self._coroutine.send(value)
        finally:
            if perf_counter() - began > BLOCKING_SECONDS:
                self._warn(began)

    def throw(self, *error: Any) -> Any:
        """Run the next step with an exception."""
        began = perf_counter()
        try:
            return self._coroutine.throw(*error)
        finally:
            if perf_counter() - began > BLOCKING_SECONDS:
                self._warn(began)

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()

    @property
    def cr_frame(self) -> FrameType | None:
        """The frame of the tool's coroutine."""
        return self._coroutine.cr_frame

    @property
    def cr_await(self) -> Any:
        """The object that the tool's coroutine awaits."""
        return self._coroutine.cr_await

    @property
    def cr_code(self) -> CodeType:
        """The code of the tool's coroutine."""
        return self._coroutine.cr_code

    @property
    def cr_running(self) -> bool:
        """True while the tool's coroutine runs."""
        return self._coroutine.cr_running

    def _warn(self, began: float) -> None:
        # Don't blame a tool that runs a sub-agent for a tool that blocked inside the sub-agent.
        if getattr(_last, "warned", -1.0) >= began:
            return
        _last.warned = now = perf_counter()
        _logger.warning(
            "the tool %r blocked the event loop for %.1f s: nothing else ran in that time, and no "
            "stop could reach it. Make it a plain `def` without quick=True, which runs in a "
            "thread, or move the blocking call into asyncio.to_thread or "
            "anyio.to_thread.run_sync",
            self._tool,
            now - began,
        )
