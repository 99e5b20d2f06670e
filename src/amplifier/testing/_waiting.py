"""Waiting for something to become true, on either backend."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import anyio

_INTERVAL = 0.01
"""Seconds between two looks."""


async def wait_for(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 1.0) -> bool:
    """Look again and again until ``condition()``, sync or async, is true.

    An event that the awaited code sets is better wherever there is one; this is for what gives no sign.

    Returns:
        True as soon as it is; False after ``timeout`` seconds, on the loop's clock.
    """
    with anyio.move_on_after(timeout):
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return True
            await anyio.sleep(_INTERVAL)
    return False
