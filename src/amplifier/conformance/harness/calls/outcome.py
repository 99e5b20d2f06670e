"""Calls of foreign code with a deadline, and how they ended."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import anyio
import attrs

from amplifier.conformance.harness.cpu_clock import slowdown, unstalled_time

CALL_SECONDS = 5.0


@attrs.frozen(kw_only=True)
class Outcome:
    """How a call of foreign code ended.

    Attributes:
        kind: ``returned``, ``raised``, or ``late`` when it was cancelled at its deadline.
        seconds: How long it took.
        is_async: Whether the function returned an awaitable; None if calling it raised.
    """

    kind: Literal["returned", "raised", "late"]
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    is_async: bool | None = None

    @property
    def returned(self) -> bool:
        """Whether the call returned in time."""
        return self.kind == "returned"

    def __str__(self) -> str:
        if self.kind == "raised":
            return f"raised {type(self.error).__name__}: {str(self.error)[:200]}"
        if self.kind == "late":
            return f"did not end within {self.seconds:.1f} s"
        return f"returned {type(self.value).__name__}"


async def call_with_deadline(
    function: Callable[..., Any], *args: Any, seconds: float = CALL_SECONDS, **kwargs: Any
) -> Outcome:
    """Call foreign code, sync or async, for a limited time; raises only when it is cancelled from outside.

    Several calls may run at the same time, unlike those of `MountedModule.call`, which sets an alarm.
    """
    started = unstalled_time()
    is_async = None
    with anyio.CancelScope() as scope:
        scope.deadline = anyio.current_time() + seconds * slowdown()
        try:
            value = function(*args, **kwargs)
            is_async = inspect.isawaitable(value)
            if is_async:
                value = await value
        except BaseException as error:  # foreign code: it may exit, or invent a cancellation
            is_cancelled = anyio.current_effective_deadline() == -math.inf
            if isinstance(error, anyio.get_cancelled_exc_class()) and is_cancelled:
                raise
            return Outcome(kind="raised", error=error, seconds=unstalled_time() - started, is_async=is_async)
        return Outcome(kind="returned", value=value, seconds=unstalled_time() - started, is_async=is_async)
    return Outcome(kind="late", seconds=unstalled_time() - started, is_async=is_async)


def binding_error(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Why a function cannot be called with these arguments; None if it can, or has no readable signature."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
