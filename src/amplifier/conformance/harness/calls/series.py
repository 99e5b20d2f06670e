"""A series of calls of one module in one session, of which each broken clause is reported once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.work_budget import Budget
from amplifier.conformance.inputs.json_schema import fingerprint

from .outcome import Outcome

SECONDS_PER_CALL = 1.5
_MAX_LATE_CALLS = 2


class CallSeries:
    """The calls, and what all of them have to keep.

    Args:
        ctx: Faults are reported there, one for each clause.
        budget: The limit of the series; None for one that its case limits.
        is_drawn: Whether the calls are the drawn case of the check, which then is the input of every fault.
    """

    def __init__(self, ctx: CheckContext, budget: Budget | None = None, *, is_drawn: bool = False) -> None:
        self.ctx = ctx
        self._budget = budget
        self._is_drawn = is_drawn
        self._reported: set[str] = set()
        self._late = 0

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up, or the module does not return any more."""
        if self._late >= _MAX_LATE_CALLS:
            self.ctx.cut_short(f"{self._late} calls did not return, so no more were made")
            return True
        return self._budget is not None and self._budget.is_spent()

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
            self.ctx.fault(clause, what, given=None if self._is_drawn else given, **details)

    def expect(self, condition: object, clause: str, what: str, given: Any) -> None:
        """Report a fault unless the condition holds."""
        if not condition:
            self.fault(clause, what, given)
