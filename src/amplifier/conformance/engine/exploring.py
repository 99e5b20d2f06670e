"""Draws cases and shrinks the failing ones, by way of Hypothesis. Needs the ``testing`` extra.

For every clause that drawn cases break the smallest one is looked for. The same seed draws the same cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, find, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.target.mounted import CheckContext, Fault

Play = Callable[[Any], list[Fault]]

CALLS = 4_000
"""The calls of the module in all cases of the quick profile; only one that starts processes reaches it."""
SHRINKING = 150
"""Cases tried at most in making one smaller."""
SHRINKING_CALLS = 3_000
"""The calls of the module in these cases."""


def explore(
    cases: SearchStrategy[Any], play: Play, ctx: CheckContext, *, examples: int, known: Set[str] = frozenset()
) -> list[Fault]:
    """Play many drawn cases; return the fault of the smallest failing one for each clause that was broken and not known to be."""
    failing: dict[str, Fault] = {}
    budget = ctx.budget(CALLS)

    def trial(case: Any) -> None:
        if budget.is_spent():
            return
        for fault in play(case):
            if fault.clause not in known:
                failing.setdefault(fault.clause, fault)

    quiet = _settings(examples, (Phase.explicit, Phase.generate))
    seeded(ctx.seed)(quiet(given(cases)(trial)))()
    return [_smallest(cases, play, clause, ctx, examples) or fault for clause, fault in failing.items()]


def _smallest(cases: SearchStrategy[Any], play: Play, clause: str, ctx: CheckContext, examples: int) -> Fault | None:
    best: list[Fault] = []
    left = examples + SHRINKING
    budget = ctx.budget(SHRINKING_CALLS)

    def breaks(case: Any) -> bool:
        nonlocal left, best
        left -= 1
        if left < 0 or budget.is_spent():
            return False
        found = [fault for fault in play(case) if fault.clause == clause]
        best = found or best
        return bool(found)

    with suppress(HypothesisException):  # not reproduced: the module does not do the same every time
        find(cases, breaks, settings=_settings(examples + SHRINKING), random=random.Random(ctx.seed))
    return best[0] if best else None


def _settings(examples: int, phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink)) -> settings:
    return settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
