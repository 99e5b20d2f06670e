"""Describes where a suspended coroutine waits: the user's own lines, not those of the event loop below them."""

from __future__ import annotations

import re
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType

from amplifier.kernel.runtime.backend import await_chain

__all__ = ["UNKNOWN", "raised_at", "tidy", "user_stack", "where"]

UNKNOWN = "?"

_MACHINERY = frozenset({"anyio", "asyncio", "concurrent", "contextlib", "outcome", "threading", "trio"})
"""Packages whose frames show an author nothing about his own code."""

_HARNESS = frozenset(
    f"{__package__}.{name}" for name in ("asyncio_trial", "cancel_at", "injection", "sweep", "trio_trial")
)

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
    frames = list(await_chain(awaitable))
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


def tidy(text: object) -> str:
    """One line of bounded length without addresses and counters, so that equal runs give equal reports."""
    line = " ".join(str(text).split())
    for pattern, replacement in _UNSTABLE:
        line = pattern.sub(replacement, line)
    return line if len(line) <= _LONGEST_DETAIL else line[: _LONGEST_DETAIL - 1] + "…"


def _is_machinery(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module in _HARNESS or module.partition(".")[0] in _MACHINERY


def _spot(code: CodeType, line: int) -> str:
    file = "/".join(PurePath(code.co_filename).parts[-2:])
    function = code.co_qualname.rpartition("<locals>.")[2]
    return f"{file}:{line} {function}"
