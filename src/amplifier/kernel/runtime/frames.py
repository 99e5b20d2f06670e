"""The frames in which a task waits, for reports about calls that hang."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType

import attrs

from amplifier.contracts import Coordinator


@attrs.frozen(eq=False, kw_only=True)
class WaitInfo:
    """The call that an object of the kernel is waiting for.

    Every kernel class with methods that wait has a method ``wait_info`` that returns this object.
    The kernel keeps no list of its tasks. `amplifier.tracing` finds these objects in the chain of
    awaits of each task.

    Attributes:
        coordinator: The coordinator of the session that the call belongs to.
        label: The kernel object that the call is made for, or a text that describes the call.
        module: The id of the module whose code is called, if the label doesn't name it.
        until: The call's deadline by the loop's clock. Infinite for none, None if not known.
    """

    coordinator: Coordinator | None = None
    label: object = None
    module: str | None = None
    until: float | None = None


# These are names of packages, not of folders: a module may be in a folder with such a name.
_EVENT_LOOPS = frozenset({"anyio", "trio", "asyncio", "outcome"})

_FRAME_ATTRIBUTES = ("cr_frame", "gi_frame", "ag_frame")
_AWAIT_ATTRIBUTES = ("cr_await", "gi_yieldfrom", "ag_await")
# The awaitables of asynchronous generators don't expose the generator.
_OPAQUE_TYPES = frozenset({"anext_awaitable", "async_generator_asend", "async_generator_athrow"})
# A longer chain is a loop of wrappers.
_MAX_CHAIN = 500


def where_suspended(awaitable: object, task: object = None) -> str:
    """Return the innermost await of ``awaitable`` as ``file:line in function``.

    An asynchronous generator can't be inspected on asyncio. In this case the result is the line
    that iterates over it, marked as such. It is "unknown" if there is no visible frame.

    Args:
        awaitable: The coroutine that is awaited.
        task: The backend's task that awaits it. On trio it makes generators visible.
    """
    location = "unknown"
    shows_generators = hasattr(task, "iter_await_frames")
    frames = _frames_below(awaitable, task) if shows_generators else await_chain(awaitable)
    for frame in frames:
        if not is_event_loop(frame) and not is_kernel(frame):
            location = _location(frame, frame.f_lineno)
    if not shows_generators and ends_in_generator(awaitable):
        return f"{location}, inside an asynchronous generator"
    return location


def location_of_raise(exc: BaseException) -> str | None:
    """Return the innermost line in the traceback, as ``file:line in function``.

    Lines of the event loop and of the kernel are left out.
    """
    location = None
    traceback = exc.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not is_event_loop(frame) and not is_kernel(frame):
            location = _location(frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return location


def _location(frame: FrameType, line: int | None) -> str:
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"


def forget_frames(errors: Iterable[BaseException]) -> None:
    """Drop the tracebacks of errors that are kept.

    The frames lead to the object that keeps the errors, which is a reference cycle. From Python
    3.12 on a frame in a traceback also keeps its callers.
    """
    waiting = list(errors)
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            waiting += [e for e in (error.__cause__, error.__context__) if e is not None]
            waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def await_chain(awaitable: object) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine, outermost first."""
    for awaited in _awaited_objects(awaitable):
        for name in _FRAME_ATTRIBUTES:
            frame = getattr(awaited, name, None)
            if isinstance(frame, FrameType):
                yield frame


def ends_in_generator(awaitable: object) -> bool:
    """Return whether the innermost visible await iterates an asynchronous generator."""
    innermost = None
    for innermost in _awaited_objects(awaitable):  # noqa: B007 — the last one counts
        pass
    return type(innermost).__name__ in _OPAQUE_TYPES


def is_event_loop(frame: FrameType) -> bool:
    """Return whether a frame belongs to the event loop, so that it doesn't show the work."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _EVENT_LOOPS


def is_kernel(frame: FrameType) -> bool:
    """Return whether a frame belongs to the kernel."""
    return str(frame.f_globals.get("__name__", "")).startswith("amplifier.kernel.")


def _frames_below(awaitable: object, task: object) -> list[FrameType]:
    """Return the frames of a trio task from ``awaitable`` on, or all if it isn't among them."""
    iter_await_frames = getattr(task, "iter_await_frames", tuple)
    frames = [frame for frame, _ in iter_await_frames()]
    first = next(await_chain(awaitable), None)
    return frames[frames.index(first) :] if first in frames else frames


def _awaited_objects(awaitable: object) -> Iterator[object]:
    for _ in range(_MAX_CHAIN):
        if awaitable is None:
            return
        yield awaitable
        inner = (getattr(awaitable, name, None) for name in _AWAIT_ATTRIBUTES)
        awaitable = next((awaited for awaited in inner if awaited is not None), None)
