"""Draws cases and shrinks the failing ones, by way of Hypothesis. Needs the ``testing`` extra.

A check that names its inputs is run on many cases; for every clause it finds broken the smallest case is looked for.
The same seed draws the same cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, find, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.harness.cpu_clock import unstalled_time
from amplifier.conformance.harness.mounted_module import Fault

Play = Callable[[Any], list[Fault]]

SECONDS_PER_EXAMPLE = 0.3
"""What a case may take on average; when the time is up no more are played: a module that hangs makes every case slow."""
SHRINKING = 150
"""Cases tried at most in making one smaller."""
SHRINKING_SECONDS = 5.0
"""What that may take: a module that writes files makes every case slow."""


def explore(cases: SearchStrategy[Any], play: Play, *, seed: int, examples: int) -> list[Fault]:
    """Play many cases and return the faults of the smallest failing one for each clause that was broken."""
    failing: dict[str, tuple[Any, Fault]] = {}
    enough = unstalled_time() + SECONDS_PER_EXAMPLE * examples

    def trial(case: Any) -> None:
        if unstalled_time() > enough:
            return
        for fault in play(case):
            failing.setdefault(fault.clause, (case, fault))

    quiet = _settings(examples, (Phase.explicit, Phase.generate))
    seeded(seed)(quiet(given(cases)(trial)))()
    return [_smallest(cases, play, clause, seed, examples) or fault for clause, (_, fault) in failing.items()]


def _smallest(cases: SearchStrategy[Any], play: Play, clause: str, seed: int, examples: int) -> Fault | None:
    best: list[Fault] = []
    left = examples + SHRINKING
    give_up = unstalled_time() + SHRINKING_SECONDS

    def breaks(case: Any) -> bool:
        nonlocal left, best
        left -= 1
        if left < 0 or unstalled_time() > give_up:
            return False
        found = [fault for fault in play(case) if fault.clause == clause]
        best = found or best
        return bool(found)

    with suppress(HypothesisException):  # not reproduced: the module does not do the same every time
        find(cases, breaks, settings=_settings(examples + SHRINKING), random=random.Random(seed))
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
