"""Exceptions that third-party code may raise and that must not end more than the call: exits, panics, spurious cancellations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel


class Panic(BaseException):
    """As a Rust extension raises it."""


async def exit_process(*_: Any) -> Any:
    """What argparse does with arguments that it does not know."""
    sys.exit("bad arguments")


async def panic(*_: Any) -> Any:
    raise Panic("index out of range")


async def cancel_spuriously(*_: Any) -> Any:
    """Raise the backend's cancellation although nothing is cancelled: by a cancelled future, or by an old exception."""
    cancelled = anyio.get_cancelled_exc_class()
    if cancelled is asyncio.CancelledError:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
    old: BaseException | None = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except cancelled as exc:
            old = exc
    assert old is not None
    raise old


ESCAPES: dict[str, Callable[..., Awaitable[Any]]] = {
    "SystemExit: bad arguments": exit_process,
    "Panic: index out of range": panic,
    "although nothing was cancelled": cancel_spuriously,
}
"""By words that the report of each must contain."""
