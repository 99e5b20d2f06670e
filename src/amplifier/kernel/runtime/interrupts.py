"""Holding Ctrl-C off on asyncio while the kernel finishes something in order to raise one at the end.

There a KeyboardInterrupt can be raised at every line. The kernel catches it, goes on where it was and raises it later; a second one at the
very moment of catching would get through. From the first one on they are therefore held off: they still stop foreign code and the
waiting of the loop, and are dropped at a line of the kernel, whose interrupt is to be raised anyway.
"""

from __future__ import annotations

import functools
import logging
import signal
import threading
from _signal import signal as set_handler  # type: ignore[import-not-found]  # that of `signal` has lines of its own
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

_KERNEL = str(Path(__file__).parents[1])
_LIBRARY = Path(logging.__file__).parents[1]
_HELPERS = (
    str(Path(anyio.__file__).parent),
    *(str(_LIBRARY / name) for name in ("asyncio", "logging", "contextlib.py")),
)


class _Interrupts(threading.local):
    """What each thread can do about it.

    Attributes:
        hold: ``before = before or interrupts.hold()``, first in an ``except KeyboardInterrupt``, holds off further ones until `release`. No function
            of ours, so that there is no line between catching one and this; where nothing can be held off it does nothing.
    """

    hold: Callable[[], Any] = int


interrupts: _Interrupts = _Interrupts()


def choose_hold() -> None:
    """See what this thread can do: only the main thread hears signals, and handlers of the application are left alone."""
    handler: Any = signal.getsignal(signal.SIGINT)
    by_asyncio = getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"
    if threading.current_thread() is threading.main_thread() and (by_asyncio or handler is signal.default_int_handler):
        interrupts.hold = functools.partial(set_handler, signal.SIGINT, _answer)
    elif handler is not _answer:
        interrupts.hold = int


def release(before: Any) -> None:
    """Answer as before to Ctrl-C; whoever found it held off already leaves that to the one who did it."""
    if callable(before) and before is not _answer and signal.getsignal(signal.SIGINT) is _answer:
        set_handler(signal.SIGINT, before)


def _answer(number: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code.co_filename.startswith(_HELPERS):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(_KERNEL):
        raise KeyboardInterrupt
