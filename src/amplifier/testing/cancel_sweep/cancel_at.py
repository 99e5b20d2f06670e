"""One cancellation at one suspension, inside a loop that is already running.

The small sibling of `cancel_everywhere`, for checks that are async functions themselves: it works on both backends and
sees only the suspensions of the one task it runs in, not those of tasks started by it, and judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, final

import anyio
import attrs

from .injection import Driven, Injection

__all__ = ["CancelledAt", "cancel_at"]


@final
@attrs.define(frozen=True, kw_only=True)
class CancelledAt:
    """How a call ended that was to be cancelled at its k-th suspension.

    Attributes:
        fired: It did suspend k times; False means that every point has been tried.
        returned: It returned a value, though cancelled; legitimate if all it had left to do was shielded.
        swallowed: The cancellation was raised inside the call, which returned all the same.
        value: What it returned.
        where: The innermost user frame that was suspended, ``file:line function``; empty if not fired.
        suspensions: How many times it suspended in all.
        seconds: How long it went on after the cancellation.
    """

    fired: bool
    returned: bool
    swallowed: bool = False
    value: object = None
    where: str = ""
    suspensions: int = 0
    seconds: float = 0.0


async def cancel_at(
    k: int, function: Callable[..., Coroutine[Any, Any, object]], *args: object, native: bool = False
) -> CancelledAt:
    """Call ``function(*args)`` and cancel it at the k-th time it suspends.

    Exceptions other than that cancellation propagate. To try every point of a call::

        for k in itertools.count(1):
            result = await cancel_at(k, tool.execute, {"path": "x"})
            if not result.fired:
                break
            assert_still_whole(tool)

    Args:
        k: From 1.
        function: Returns a coroutine.
        args: Its arguments.
        native: Cancel by ``Task.cancel()``, in a task of its own; on asyncio only. Otherwise by a cancel scope, in this
            task.
    """
    if k < 1:
        raise ValueError(f"k: found {k!r}, expected a number from 1 up")
    fired_at: list[float] = []
    injection = Injection(k=k, fire=_nothing)
    call = Driven(function(*args), injection)

    def fire_with(cancel: Callable[[], object]) -> None:
        def fire() -> None:
            fired_at.append(time.monotonic())
            cancel()

        injection.fire = fire

    value, returned = await (_cancelled_natively if native else _cancelled_by_scope)(call, fire_with)
    return CancelledAt(
        fired=injection.fired,
        returned=returned,
        swallowed=returned and injection.delivered,
        value=value,
        where=injection.stack[-1] if injection.stack else "",
        suspensions=injection.count,
        seconds=time.monotonic() - fired_at[0] if fired_at else 0.0,
    )


_FireWith = Callable[[Callable[[], object]], None]


async def _cancelled_by_scope(call: Driven[object], fire_with: _FireWith) -> tuple[object, bool]:
    with anyio.CancelScope() as scope:
        fire_with(scope.cancel)
        return await call, True
    return None, False


async def _cancelled_natively(call: Driven[object], fire_with: _FireWith) -> tuple[object, bool]:
    async def run() -> object:
        return await call

    task = asyncio.get_running_loop().create_task(run())
    fire_with(task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        if not task.done():  # we are being cancelled ourselves
            task.cancel()
            await asyncio.wait([task])
    return (None, False) if task.cancelled() else (task.result(), True)


def _nothing() -> None:
    """Placeholder until an injection has something to fire."""
