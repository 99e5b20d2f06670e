"""Calls of one module in one session: a series of which each broken clause is reported once, and how two texts differ."""

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
"""A suspension that no call reaches."""
SECONDS_PER_CALL = 1.5
_MAX_LATE_CALLS = 2
_CALLS = 3_000
"""The limit of a series in the quick profile."""


class CallSeries:
    """The calls, and what all of them have to keep.

    Args:
        ctx: Faults are reported there, one for each clause.
    """

    def __init__(self, ctx: CheckContext) -> None:
        self.ctx = ctx
        self._budget = ctx.budget(_CALLS)
        self._reported: set[str] = set()
        self._late = 0

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up, or the module does not return any more."""
        if self._late >= _MAX_LATE_CALLS:
            self.ctx.cut_short(f"{self._late} calls did not return, so no more were made")
            return True
        return self._budget.is_spent()

    async def call(
        self, mounted: MountedModule, function: Callable[[Any], Any], given: dict[str, Any]
    ) -> tuple[Outcome, dict[str, Any], str | None]:
        """Call a function with a copy of an input.

        Returns:
            The outcome, the copy, and what the copy has become if the function changed it.
        """
        own, before = copy.deepcopy(given), fingerprint(given)
        outcome = await mounted.call(function, own, seconds=SECONDS_PER_CALL)
        self._late += outcome.kind == "late"
        after = fingerprint(own)
        return outcome, own, None if after == before else after

    def fault(self, clause: str, what: str, given: Any, **details: Any) -> None:
        """Report a broken clause, the first time."""
        if clause not in self._reported:
            self._reported.add(clause)
            self.ctx.fault(clause, what, given=given, **details)

    def expect(self, condition: object, clause: str, what: str, given: Any) -> None:
        """Report a fault unless the condition holds."""
        if not condition:
            self.fault(clause, what, given)


@asynccontextmanager
async def with_instance(ctx: CheckContext) -> AsyncIterator[MountedModule | None]:
    """The mounted module; None if mount gave no instance."""
    async with ctx.mount() as mounted:
        yield None if mounted.instance is None else mounted


async def check_method(
    mounted: MountedModule, clause: str, name: str, *args: Any, is_async: bool = True, **kwargs: Any
) -> None:
    """Call a method of the instance as the contract demands."""
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


def chosen_suspensions(ctx: CheckContext, suspensions: int, most: int) -> list[int]:
    """All suspensions of a call, or a sample with the first and the last one."""
    every = range(1, suspensions + 1)
    if suspensions <= most:
        return list(every)
    return sorted({1, suspensions, *random.Random(ctx.seed).sample(every, most)})


_AROUND = 24
_LONGEST = 60


def first_difference(usual: str, other: str) -> str:
    """Two texts where they begin to differ, for a report: the other one, and what was expected."""
    at = next(
        (place for place, (one, two) in enumerate(zip(usual, other, strict=False)) if one != two),
        None,
    )
    at = min(len(usual), len(other)) if at is None else at
    start = max(0, at - _AROUND)
    usual, other = (
        ("…" if start else "")
        + text[start : at + _LONGEST]
        + ("…" if len(text) > at + _LONGEST else "")
        for text in (usual, other)
    )
    return f"{other}; expected {usual}"
