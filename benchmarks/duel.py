"""Two ways of doing the same thing, timed in turn: the figure is the median of the ratios within each round.

Whatever else the machine does hits both alike, so ratios are steady where times are not. Each side is a sync function that
does the work `count` times and returns the seconds it took; async work brings its own event loop (see `kernels`).
"""

from __future__ import annotations

import gc
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

Side = Callable[[int], float]

QUICK = bool(os.environ.get("BENCH_QUICK"))
ROUNDS = 7 if QUICK else 21
TARGET_SECONDS = 0.01 if QUICK else 0.03
"""How long one sample of the faster side should take."""

RESULTS = Path(os.environ.get("BENCH_RESULTS", "benchmarks/results.json"))


@frozen(kw_only=True)
class Score:
    """What came of one duel.

    Attributes:
        ratio: How many times faster ours is, the median over the rounds; low and high are the quartiles.
        ours: Microseconds for one time, the median.
        theirs: The same of the other side.
        target: What the ratio should be at least; None if there is none.
    """

    name: str
    rival: str
    ratio: float
    low: float
    high: float
    ours: float
    theirs: float
    target: float | None = None

    @property
    def is_met(self) -> bool:
        return self.target is None or self.ratio >= self.target

    def line(self) -> str:
        wanted = "" if self.target is None else f"  wanted {self.target:g}x" + ("" if self.is_met else "  MISSED")
        spread = f"{self.low:.1f}..{self.high:.1f}"
        return f"{self.name:<52}{self.theirs:>12.2f}{self.ours:>12.2f}{self.ratio:>9.1f}x  {spread:<16}{wanted}"


@define
class Table:
    """Scores in the order they were made; printed and written at the end."""

    scores: list[Score] = field(factory=list)

    def duel(
        self, name: str, theirs: Side, ours: Side, *, target: float | None = None, rival: str = "amplifier-core 2.0.2"
    ) -> Score:
        """Time both sides and remember the score."""
        score = _fought(name, theirs, ours, target, rival)
        self.scores.append(score)
        print(score.line(), flush=True)
        return score

    def write(self, path: Path = RESULTS) -> None:
        """Add the scores to a JSON file, by name."""
        try:
            known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        for score in self.scores:
            known[f"{score.name} ({score.rival})"] = {
                "ratio": round(score.ratio, 2),
                "quartiles": [round(score.low, 2), round(score.high, 2)],
                "ours_us": round(score.ours, 2),
                "theirs_us": round(score.theirs, 2),
                "target": score.target,
            }
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _fought(name: str, theirs: Side, ours: Side, target: float | None, rival: str) -> Score:
    our_count, their_count = _calibrated(ours), _calibrated(theirs)
    our_times, their_times = [], []
    for number in range(ROUNDS):
        # Each goes first every other time.
        for mine in (True, False) if number % 2 else (False, True):
            gc.collect()
            if mine:
                our_times.append(ours(our_count) / our_count)
            else:
                their_times.append(theirs(their_count) / their_count)
    ratios = sorted(t / o for t, o in zip(their_times, our_times, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    return Score(
        name=name,
        rival=rival,
        ratio=statistics.median(ratios),
        low=low,
        high=high,
        ours=statistics.median(our_times) * 1e6,
        theirs=statistics.median(their_times) * 1e6,
        target=target,
    )


def _calibrated(side: Side) -> int:
    """How many times make one sample."""
    count = 1
    while True:
        seconds = side(count)
        if seconds >= TARGET_SECONDS / 4 or count > 1_000_000:
            return max(1, int(count * TARGET_SECONDS / max(seconds, 1e-9)))
        count *= 4
