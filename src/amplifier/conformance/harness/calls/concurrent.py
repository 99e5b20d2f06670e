"""Detects cross-talk: two marked calls run at the same time, and neither result may hold the mark of the other call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.mounted_module import CANCEL_GRACE, CheckContext

from .outcome import Outcome

MARKS = ("alphamark", "bravomark")
HEAD_STARTS = (0, 1, 3)
"""Steps of the loop that the first call is ahead."""

Call = Callable[[], Awaitable[Outcome]]


def has_swapped(index: int, text: str) -> bool:
    """Whether the result of one of the two calls holds the mark of the other one instead of its own."""
    return MARKS[index] not in text and MARKS[1 - index] in text


async def run_concurrently(
    ctx: CheckContext,
    calls: tuple[Call, Call],
    head_start: int,
    *,
    what: str,
    seconds: float,
    cancel_first: bool = False,
) -> list[Outcome]:
    """Make both calls at the same time.

    Args:
        ctx: The check.
        calls: The calls, each with a deadline of its own.
        head_start: The steps of the loop between the two starts; with ``cancel_first``, between second start and
            cancellation.
        what: Names the calls in a fault.
        seconds: The deadline of one call.
        cancel_first: Cancel the first call while the second one runs.
    """
    outcomes = [Outcome(kind="late"), Outcome(kind="late")]
    scope = anyio.CancelScope()

    async def run(index: int) -> None:
        with scope if index == 0 else anyio.CancelScope():
            outcomes[index] = await calls[index]()

    with ctx.alarm(seconds * 2 + CANCEL_GRACE, "A8", what):
        async with anyio.create_task_group() as group:
            group.start_soon(run, 0)
            for _ in range(1 if cancel_first else head_start):
                await anyio.lowlevel.checkpoint()
            group.start_soon(run, 1)
            if cancel_first:
                for _ in range(head_start + 1):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
    return outcomes
