"""Where a suspended coroutine sits: the innermost line that is not the event loop's own, for reports."""

from __future__ import annotations

import os
from typing import Any

_MACHINERY = tuple(f"{os.sep}{name}{os.sep}" for name in ("anyio", "trio", "asyncio", "outcome"))

_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_NEXT = ("cr_await", "gi_yieldfrom", "ag_await")


def where_suspended(awaitable: Any) -> str:
    """Name the innermost await of ``awaitable`` as ``file:line in function``; "unknown" when it cannot be seen."""
    best = "unknown"
    seen = 0
    while awaitable is not None and seen < 200:  # a chain this long is a loop of wrappers
        seen += 1
        frame = next((f for attr in _FRAMES if (f := getattr(awaitable, attr, None)) is not None), None)
        if frame is not None:
            path = frame.f_code.co_filename
            if not any(part in path for part in _MACHINERY):
                best = f"{path}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaitable = next((n for attr in _NEXT if (n := getattr(awaitable, attr, None)) is not None), None)
    return best
