"""The scripted turn on the published kernel, alone in its process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.kernels import THEIRS


async def prepare() -> Callable[[], Awaitable[Any]]:
    session = await THEIRS.opened()
    return lambda: session.execute("go")
