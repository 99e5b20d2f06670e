"""Where a suspended coroutine sits: the innermost line that is not the event loop's own, for reports."""

from __future__ import annotations

from typing import Any

_MACHINERY = frozenset({"anyio", "trio", "asyncio", "outcome"})
"""Top-level packages, not folders: a module may well live in a folder of that name."""

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
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if package not in _MACHINERY:
                best = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaitable = next((n for attr in _NEXT if (n := getattr(awaitable, attr, None)) is not None), None)
    return best
