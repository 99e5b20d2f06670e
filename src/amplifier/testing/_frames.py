"""Where a suspended coroutine stands, in words: the user's own lines, not those of the machinery below them.

Used by the cancellation sweep (`_injection.py`, the trials) to say which await was hit. Knows nothing of any backend.
"""

from __future__ import annotations

import gc
import inspect
import math
import re
from collections.abc import Iterator
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType

__all__ = ["UNKNOWN", "describe_scope", "raised_at", "tidy", "user_stack", "where"]

UNKNOWN = "?"

_MACHINERY = frozenset({"anyio", "asyncio", "concurrent", "contextlib", "outcome", "threading", "trio"})
"""Packages whose frames tell an author nothing about his own code."""

_HARNESS = frozenset(
    f"{__package__}.{name}" for name in ("_asyncio_trial", "_cancel_at", "_injection", "_sweep", "_trio_trial")
)

_OPAQUE = frozenset({"anext_awaitable", "async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
"""Built-in awaitables that hide what they wait for; the garbage collector still knows."""

_LONGEST_CHAIN = 500
_LONGEST_DETAIL = 240

_UNSTABLE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"\bTask-\d+"), "Task-…"),
    (re.compile(r"\bThread-\d+"), "Thread-…"),
    (re.compile(r"\bfd=\d+"), "fd=…"),
)


def user_stack(awaitable: object) -> tuple[str, ...]:
    """The user's frames of a suspended await chain as ``file:line function``, outermost first.

    Falls back to the innermost frame of any kind when the chain holds no user frame at all.
    """
    frames = list(_frames(awaitable))
    mine = [frame for frame in frames if not _is_machinery(frame)]
    return tuple(_spot(frame.f_code, frame.f_lineno) for frame in mine or frames[-1:])


def where(awaitable: object) -> str:
    """The innermost of the user's frames, or `UNKNOWN`."""
    stack = user_stack(awaitable)
    return stack[-1] if stack else UNKNOWN


def raised_at(traceback: TracebackType | None) -> str:
    """The innermost user frame of a traceback, or `UNKNOWN`."""
    spot = UNKNOWN
    while traceback is not None:
        if not _is_machinery(traceback.tb_frame):
            spot = _spot(traceback.tb_frame.f_code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return spot


def describe_scope(*, shield: bool, deadline: float, now: float, cancelled: bool) -> str:
    """One cancel scope in a few words, for example ``shielded, 5 s left``."""
    words = []
    if shield:
        words.append("shielded")
    if cancelled:
        words.append("cancelled")
    if math.isfinite(deadline):
        words.append(f"{max(0.0, deadline - now):.3g} s left")
    return ", ".join(words) or "plain"


def tidy(text: object) -> str:
    """One line of bounded length without addresses and counters, so that equal runs give equal reports."""
    line = " ".join(str(text).split())
    for pattern, replacement in _UNSTABLE:
        line = pattern.sub(replacement, line)
    return line if len(line) <= _LONGEST_DETAIL else line[: _LONGEST_DETAIL - 1] + "…"


def _frames(awaitable: object) -> Iterator[FrameType]:
    current: object | None = awaitable
    for _ in range(_LONGEST_CHAIN):
        if current is None:
            return
        frame = _first_attribute(current, "cr_frame", "gi_frame", "ag_frame")
        if isinstance(frame, FrameType):
            yield frame
        current = _awaited(current)


def _awaited(awaitable: object) -> object | None:
    inner = _first_attribute(awaitable, "cr_await", "gi_yieldfrom", "ag_await")
    if inner is None and type(awaitable).__name__ in _OPAQUE:
        for candidate in gc.get_referents(awaitable):
            if inspect.iscoroutine(candidate) or inspect.isasyncgen(candidate) or inspect.isgenerator(candidate):
                return candidate
    return inner


def _first_attribute(owner: object, *names: str) -> object | None:
    for name in names:
        value: object | None = getattr(owner, name, None)
        if value is not None:
            return value
    return None


def _is_machinery(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module in _HARNESS or module.partition(".")[0] in _MACHINERY


def _spot(code: CodeType, line: int) -> str:
    file = "/".join(PurePath(code.co_filename).parts[-2:])
    function = code.co_qualname.rpartition("<locals>.")[2]
    return f"{file}:{line} {function}"
