"""Where a suspended coroutine waits: its chain of awaits as frames, and the innermost line that is not the event loop's own."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

_MACHINERY = frozenset({"anyio", "trio", "asyncio", "outcome"})
"""Top-level packages, not folders: a module may well live in a folder of that name."""

_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_NEXT = ("cr_await", "gi_yieldfrom", "ag_await")
_OPAQUE = frozenset({"anext_awaitable", "async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
"""Built-in awaitables that do not expose what they wait for; the garbage collector still knows."""

_LONGEST_CHAIN = 500
"""A longer chain is a loop of wrappers."""


def where_suspended(awaitable: Any) -> str:
    """Name the innermost await of ``awaitable`` as ``file:line in function``; "unknown" when it cannot be seen."""
    best = "unknown"
    for frame in await_chain(awaitable):
        if not is_machinery(frame):
            best = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
    return best


def location_of_raise(exc: BaseException) -> str | None:
    """Name the innermost line that an exception passed, as ``file:line in function``, leaving out the event loop's own."""
    best = None
    traceback = exc.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not is_machinery(frame) and not is_kernel(frame):
            best = f"{frame.f_code.co_filename}:{traceback.tb_lineno} in {frame.f_code.co_qualname}"
        traceback = traceback.tb_next
    return best


def forget_frames(errors: Iterable[BaseException]) -> None:
    """Drop the tracebacks of errors that are kept: their frames lead to whoever keeps them, a reference cycle.

    From Python 3.12 on a frame in a traceback keeps all those that called it.
    """
    waiting = list(errors)
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            waiting += [each for each in (error.__cause__, error.__context__) if each is not None]
            waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def await_chain(awaitable: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, outermost first; nothing for what cannot be looked into."""
    for _ in range(_LONGEST_CHAIN):
        if awaitable is None:
            return
        frame = next((f for attr in _FRAMES if (f := getattr(awaitable, attr, None)) is not None), None)
        if isinstance(frame, FrameType):
            yield frame
        awaitable = _awaited(awaitable)


def is_machinery(frame: FrameType) -> bool:
    """Whether a frame is the event loop's own and so does not show what was being done."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _MACHINERY


def is_kernel(frame: FrameType) -> bool:
    """Whether a frame belongs to the kernel itself."""
    return str(frame.f_globals.get("__name__", "")).startswith("amplifier.kernel.")


def _awaited(awaitable: Any) -> Any:
    inner = next((n for attr in _NEXT if (n := getattr(awaitable, attr, None)) is not None), None)
    if inner is None and inspect.isgenerator(awaitable) and awaitable.gi_frame is not None:
        return awaitable.gi_frame.f_locals.get("driven_by_hand")  # see `stepping`
    if inner is None and type(awaitable).__name__ in _OPAQUE:
        for candidate in gc.get_referents(awaitable):
            if inspect.iscoroutine(candidate) or inspect.isasyncgen(candidate) or inspect.isgenerator(candidate):
                return candidate
    return inner
