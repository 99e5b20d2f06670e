"""Run work in a child task for which the caller waits."""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.lowlevel
import attrs

from amplifier.contracts.cancellation import (
    cancel_scope,
    is_cancellation_type,
    running_asyncio_loop,
)

T = TypeVar("T")
Fn = TypeVar("Fn", bound=Callable[..., Any])

_NO_SCOPE = nullcontext()

_TEXT_OF_SCOPES = "Cancelled via cancel scope "
"""The beginning of the message of a CancelledError with which AnyIO cancels a task."""

# Opening, a turn and closing each run in a child task of an AnyIO task group. The group gives
# the kernel everything that it promises about cancellation, on both backends and with public
# API only:
#
# - A native ``Task.cancel()`` on asyncio hits the waiting caller. The group turns it into the
#   level-triggered cancellation of the child, waits until the child has unwound, and raises the
#   caller's own CancelledError. A second one changes nothing.
# - So a plain ``CancelScope(shield=True)`` is effective inside the child. In the caller's task it
# would not be: asyncio delivers ``Task.cancel()`` through every shield.
# - On trio, Ctrl-C is raised in the main task where it waits, which is the caller again.
# - Context variables that the work sets aren't seen outside, and nested sessions don't deepen
#   the stack.
#
# Running the work in the caller's task was rejected because it has none of these four. Hiding the
# child from asyncio, so that the end of ``asyncio.run`` can't cancel it, was rejected because a
# library must not interfere with that. When the loop ends, the pending await in the child raises
# CancelledError, as it would in any code, and the child continues with its remaining work.


@attrs.define(eq=False)
class _Outcome(Generic[T]):
    """The result of the work, carried from the child to the caller.

    The child never raises, because the group would wrap the error, and a KeyboardInterrupt raised
    by a task stops asyncio's loop.
    """

    has_begun: bool = False
    value: T | None = None
    error: BaseException | None = None


async def run_in_child(
    fn: Callable[..., Awaitable[T]], *args: object, name: str, shield: bool = False
) -> T:
    """Run ``fn(*args)`` in a child task and return its result.

    Args:
        fn: The work. It runs in a copy of the caller's context.
        args: Its arguments.
        name: The name of the task.
        shield: Let the work finish before a cancellation of the caller is delivered. Every foreign
            call in the work needs a deadline.

    Raises:
        BaseException: The error of the work. If the caller was cancelled natively in the meantime,
            its own CancelledError is raised, so that no native cancellation is lost, with the error
            of the work as its cause.
    """
    # ``_Outcome[T]()`` goes through ``typing`` and takes three times as long.
    outcome: _Outcome[T] = _Outcome()
    stop: BaseException | None = None
    cancels = pending_cancels()
    try:
        while True:
            try:
                with cancel_scope(shield=True) if shield else _NO_SCOPE:
                    async with anyio.create_task_group() as group:
                        group.start_soon(_run, outcome, fn, args, shield, name=name)
            except BaseException as exc:  # noqa: BLE001 — raised below
                # Trio wraps a KeyboardInterrupt of the waiting caller in a group.
                stop = exc.exceptions[0] if isinstance(exc, BaseExceptionGroup) else exc
            # When an asyncio loop ends, it can cancel the child before its first step. In that
            # case, run it again and raise `stop` afterwards.
            was_cancelled = stop is not None and is_cancellation_type(stop)
            if outcome.has_begun or not (shield and was_cancelled):
                break
        if outcome.error is not None and (
            stop is None or _error_comes_first(outcome.error, stop, cancels, shield)
        ):
            raise outcome.error
        if stop is not None:
            if outcome.error is None or is_cancellation_type(outcome.error):
                raise stop
            raise stop from outcome.error
        if not outcome.has_begun:
            raise anyio.get_cancelled_exc_class()
        if not shield and running_asyncio_loop() is None:
            # Trio doesn't interrupt a caller that waits for its nursery.
            await anyio.lowlevel.checkpoint_if_cancelled()
        return cast("T", outcome.value)
    finally:
        # An exception that a frame in its own traceback refers to is a reference cycle. It would
        # keep a closed session alive until the garbage collector runs.
        del outcome, stop


def _error_comes_first(
    error: BaseException, stop: BaseException, cancels: int, shield: bool
) -> bool:
    """Return whether the caller raises the error of the work rather than its own interruption."""
    if not is_cancellation_type(stop) or is_cancellation_type(error):
        return False
    # A scope delivers its cancellation again at the next await. A native cancellation is delivered
    # only once.
    return isinstance(error, KeyboardInterrupt) or not is_native(stop, cancels, shield=shield)


def pending_cancels() -> int:
    """Return the number of cancellations that the current task has received. 0 on trio."""
    if running_asyncio_loop() is None:
        return 0
    return cast("int", sys.modules["asyncio"].current_task().cancelling())


def is_native(stop: BaseException, cancels: int, *, shield: bool = False) -> bool:
    """Return whether the cancellation of a caller that waited for its task group was native.

    Args:
        stop: The cancellation that the wait raised.
        cancels: The result of `pending_cancels` before the wait.
        shield: True if no scope could reach the wait.
    """
    if shield or anyio.current_effective_deadline() > -math.inf:
        return True
    if running_asyncio_loop() is None:
        return False
    # A scope around the caller is cancelled as well. AnyIO cancels a task that waits for a group at
    # most once, and this text distinguishes its cancellation from a native one.
    is_from_scope = bool(stop.args) and str(stop.args[0]).startswith(_TEXT_OF_SCOPES)
    return pending_cancels() - cancels > 1 or not is_from_scope


async def _run(
    outcome: _Outcome[T], fn: Callable[..., Awaitable[T]], args: tuple[object, ...], shield: bool
) -> None:
    """Run the work and keep its result or error. This is the body of the child task."""
    outcome.has_begun = True
    try:
        # The group is cancelled with its caller.
        with cancel_scope(shield=True) if shield else _NO_SCOPE:
            outcome.value = await fn(*args)
    except BaseException as exc:  # noqa: BLE001 — raised in the caller
        outcome.error = exc
    finally:
        del outcome  # see run_in_child


# ── Ctrl-C on trio ────────────────────────────────────────────────────────────────────────────

_to_protect: list[Callable[..., Any]] = []


def ki_protected(fn: Fn) -> Fn:
    """Mark a function that runs cleanups. In it, trio raises KeyboardInterrupt only at a wait."""
    _to_protect.append(fn)
    return fn


def enable_ki_protection() -> None:
    """Register the functions marked with `ki_protected` with trio, if trio is running."""
    if _to_protect and running_asyncio_loop() is None:
        while _to_protect:
            sys.modules["trio"].lowlevel.enable_ki_protection(_to_protect.pop())
