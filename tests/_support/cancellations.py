"""Cancellations that no one requested, as third-party code meets or keeps them."""

from __future__ import annotations

import asyncio

import anyio.lowlevel
import sniffio
import trio


async def some_cancellation() -> BaseException:
    """An exception of the running backend that means cancellation, left over from something that is over."""
    if sniffio.current_async_library() == "asyncio":
        return asyncio.CancelledError()
    kept: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except trio.Cancelled as exc:
            kept.append(exc)
            raise
    return kept[0]
