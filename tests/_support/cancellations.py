"""Cancellations that no one requested, as third-party code meets or keeps them."""

from __future__ import annotations

import anyio
import anyio.lowlevel


async def some_cancellation() -> BaseException:
    """The cancellation of a task on the running backend, as it was raised there, left over from something that is over."""
    kept: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as exc:
            kept.append(exc)
            raise
    return kept.pop()
