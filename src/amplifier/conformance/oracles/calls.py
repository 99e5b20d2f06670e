"""Make series of calls in one session, in which each violated clause is reported once."""

from __future__ import annotations

import copy
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from amplifier.conformance.inputs.json_schema import fingerprint
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.mounted import CheckContext, MountedModule

NEVER = 1_000_000_000
"""Number of a suspension that no call reaches."""
SECONDS_PER_CALL = 1.5
_MAX_LATE_CALLS = 2
_CALLS = 3_000
"""Budget of a series in the quick profile."""


class CallSeries:
    """A series of calls with a budget.

    Args:
        ctx: Collects the faults, one for each clause.
    """

    def __init__(self, ctx: CheckContext) -> None:
        self.ctx = ctx
        self._budget = ctx.budget(_CALLS)
        self._reported: set[str] = set()
        self._late = 0

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up, or the module no longer returns."""
        if self._late >= _MAX_LATE_CALLS:
            self.ctx.cut_short(f"{self._late} calls did not return, so no more were made")
            return True
        return self._budget.is_spent()

    async def call(
        self, mounted: MountedModule, function: Callable[[Any], Any], given: dict[str, Any]
    ) -> tuple[Outcome, dict[str, Any], str | None]:
        """Call a function with a copy of an input.

        Returns:
            The outcome, the copy, and the changed content if the function changed the copy.
        """
        own, before = copy.deepcopy(given), fingerprint(given)
        outcome = await mounted.call(function, own, seconds=SECONDS_PER_CALL)
        self._late += outcome.kind == "late"
        after = fingerprint(own)
        return outcome, own, None if after == before else after

    def fault(self, clause: str, what: str, given: Any, **details: Any) -> None:
        """Report the first violation of a clause."""
        if clause not in self._reported:
            self._reported.add(clause)
            self.ctx.fault(clause, what, given=given, **details)

    def expect(self, condition: object, clause: str, what: str, given: Any) -> None:
        """Report a fault unless the condition holds."""
        if not condition:
            self.fault(clause, what, given)


@asynccontextmanager
async def with_instance(ctx: CheckContext) -> AsyncIterator[MountedModule | None]:
    """Provide the mounted module, or None if mount gave no instance."""
    async with ctx.mount() as mounted:
        yield None if mounted.instance is None else mounted


async def check_method(
    mounted: MountedModule, clause: str, name: str, *args: Any, is_async: bool = True, **kwargs: Any
) -> None:
    """Call a method of the instance as the contract requires."""
    ctx, instance = mounted.ctx, mounted.instance
    if not callable(getattr(instance, name, None)):
        ctx.fault(clause, f"{type(instance).__name__} has no method {name!r}")
        return
    outcome = await mounted.call(getattr(instance, name), *args, **kwargs)
    if outcome.is_async is not None and outcome.is_async is not is_async:
        what = (
            f"returned {type(outcome.value).__name__} without being awaited"
            if is_async
            else "had to be awaited"
        )
        ctx.fault(clause, f"{name} is {'not async: it' if is_async else 'async: it'} {what}")
    elif isinstance(outcome.error, TypeError) and ctx.location_of(outcome.error) is None:
        ctx.fault(clause, f"{name} cannot be called as the contract demands: {outcome.error}")


def chosen_suspensions(ctx: CheckContext, suspensions: int, limit: int) -> list[int]:
    """Return all suspensions of a call, or a sample with the first and the last one."""
    every = range(1, suspensions + 1)
    if suspensions <= limit:
        return list(every)
    return sorted({1, suspensions, *random.Random(ctx.seed).sample(every, limit)})


_CHARACTERS_BEFORE = 24
_CHARACTERS_AFTER = 60


def first_difference(usual: str, other: str) -> str:
    """Show two texts from their first difference on, for a report."""
    at = next(
        (place for place, (one, two) in enumerate(zip(usual, other, strict=False)) if one != two),
        None,
    )
    at = min(len(usual), len(other)) if at is None else at
    start, end = max(0, at - _CHARACTERS_BEFORE), at + _CHARACTERS_AFTER
    usual, other = (
        ("…" if start else "") + text[start:end] + ("…" if len(text) > end else "")
        for text in (usual, other)
    )
    return f"{other}; expected {usual}"
