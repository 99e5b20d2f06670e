"""Calls of foreign code with a deadline, and how they ended."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import anyio
import attrs

from amplifier.conformance.target.virtual_clock import (
    count_call,
    is_virtual,
    limited,
    machine_load,
    skipped,
    slowdown,
    unstalled_time,
    when_stuck,
)

CALL_SECONDS = 5.0
"""Real seconds that a call may take while it waits for a thread, a process or a connection."""
PATIENCE = 60.0
"""Virtual seconds that a call may take: they cost nothing, and a module may be slow."""
_JUMPS = 3_000
"""How often the virtual clock may jump in a call: one that polls every hundredth of a second takes half a minute then."""
_AFTER_A_HANG = 1.0
_hangs: list[bool] = []


@attrs.frozen(kw_only=True)
class Outcome:
    """How a call of foreign code ended.

    Attributes:
        kind: ``returned``, ``raised``, or ``late`` when it was cancelled at its deadline.
        seconds: How long it took; the deadline if it was late.
        is_async: Whether the function returned an awaitable; None if calling it raised.
        overrun: How many virtual seconds it went on after its deadline, at which it was cancelled.
    """

    kind: Literal["returned", "raised", "late"]
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    is_async: bool | None = None
    overrun: float = 0.0

    @property
    def returned(self) -> bool:
        """Whether the call returned in time."""
        return self.kind == "returned"

    def __str__(self) -> str:
        if self.kind == "raised":
            return f"raised {type(self.error).__name__}: {str(self.error)[:200]}"
        if self.kind == "late":
            return f"did not end within {self.seconds:g} s"
        return f"returned {type(self.value).__name__}"


def remember_hang() -> None:
    """Wait less for calls from now on: that the module hangs is known, and that costs time at every check."""
    _hangs.append(True)


def waiting_seconds(seconds: float) -> float:
    """How many real seconds to wait for a call that may take so many."""
    return min(seconds, _AFTER_A_HANG) if _hangs else seconds


def reraise_own_cancellation(error: BaseException) -> None:
    """Raise what foreign code raised again if it is the cancellation of a scope around this task, and nothing else.

    Foreign code may raise anything: an exit, a cancellation that it made up, or a group that holds the real one. None of these ends a
    cancelled call as it should, so the caller reports them.
    """
    if isinstance(error, anyio.get_cancelled_exc_class()) and anyio.current_effective_deadline() == -math.inf:
        raise error


def _holds_cancellation(error: BaseException) -> bool:
    """Whether an error is a group with a cancellation in it: the call was cancelled and has not failed by itself."""
    return isinstance(error, BaseExceptionGroup) and error.subgroup(anyio.get_cancelled_exc_class()) is not None


async def call_with_deadline(
    function: Callable[..., Any], *args: Any, seconds: float = CALL_SECONDS, is_exact: bool = False, **kwargs: Any
) -> Outcome:
    """Call foreign code, sync or async, for a limited time; raises only when it is cancelled from outside.

    Several calls may run at the same time, unlike those of `MountedModule.call`, which sets a watchdog.

    Args:
        function: What to call.
        args: Its arguments.
        seconds: The limit in real seconds; what waits for timers alone may take longer.
        is_exact: Whether the limit is part of the contract, so that it holds for timers as well.
        kwargs: Its keyword arguments.
    """
    count_call()
    started = unstalled_time()
    real_start = started - skipped()
    is_async, value = None, None
    patient = is_virtual() and not is_exact
    with anyio.CancelScope() as scope:
        begun = anyio.current_time()
        most = waiting_seconds(seconds) * max(slowdown(), machine_load())
        scope.deadline = begun + (max(seconds, PATIENCE) * slowdown() if patient else most)
        try:
            with limited(scope, most, jumps=_JUMPS if patient else math.inf):
                value = function(*args, **kwargs)
                is_async = inspect.isawaitable(value)
                if is_async:
                    value = await value
        except BaseException as error:  # noqa: BLE001 — foreign code: it may exit, or invent a cancellation
            reraise_own_cancellation(error)
            if not (scope.cancel_called and _holds_cancellation(error)):
                return Outcome(kind="raised", error=error, seconds=unstalled_time() - started, is_async=is_async)
        if anyio.current_time() <= scope.deadline and not scope.cancel_called:
            return Outcome(kind="returned", value=value, seconds=unstalled_time() - started, is_async=is_async)
    has_waited = unstalled_time() - skipped() - real_start >= waiting_seconds(seconds)
    if has_waited and is_virtual():
        remember_hang()
    overrun = 0.0 if has_waited or not is_virtual() else anyio.current_time() - scope.deadline
    limit = PATIENCE if patient and not has_waited else seconds
    return Outcome(kind="late", seconds=limit, is_async=is_async, overrun=overrun)


async def waits_for_ever(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call waits for what cannot happen: no timer, thread, process or connection is left to bring it about.

    Only in virtual time that can be known. The call is cancelled then; one that goes on for long is cancelled, too, and nothing is
    known about it.
    """
    count_call()
    is_stuck = False
    with anyio.CancelScope() as scope:

        def stop() -> None:
            nonlocal is_stuck
            is_stuck = True
            scope.cancel()

        try:
            with when_stuck(stop), limited(scope, waiting_seconds(CALL_SECONDS), jumps=_JUMPS):
                await function(*args)
        except BaseException as error:  # noqa: BLE001 — foreign code, as above
            reraise_own_cancellation(error)
    return is_stuck


def binding_error(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Why a function cannot be called with these arguments; None if it can, or has no readable signature."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
