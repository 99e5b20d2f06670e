"""Two helpers of the published kernel's bridge to native code, which its tests import."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

__all__: list[str] = []


async def _wrap(awaitable: Awaitable[Any]) -> Any:
    """Any awaitable as a coroutine, which is what ``asyncio.create_task`` takes."""
    return await awaitable


class _OwnedHookTask:
    """A hook's coroutine that is cancelled when its caller stops waiting, before or after it has started."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._cancel_requested = False

    async def run(self) -> Any:
        """Run the coroutine in the current task."""
        if self._cancel_requested:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await self._coroutine
        finally:
            self._task = None

    def cancel(self) -> None:
        """Cancel the run, or keep it from ever starting."""
        self._cancel_requested = True
        if self._task is None:
            self._coroutine.close()
        else:
            self._task.cancel()
