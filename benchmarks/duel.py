"""Two ways of doing the same thing, timed in turn: the figure is the median of the ratios within each round.

Whatever else the machine does hits both alike, so ratios are steady where times are not. A side does the work ``count``
times and returns what it took, in processor time of its whole process (all threads) and by the clock; the ratios are those of
processor time, because another process on the same core makes the clock run but not the processor time. On a quiet machine
with everything on one core (see `conftest`) both are the same.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import frozen

QUICK = bool(os.environ.get("BENCH_QUICK"))
ROUNDS = 5 if QUICK else 21
SECONDS = 0.01 if QUICK else 0.04
"""How long one sample should take."""


@frozen
class Sample:
    """What a number of times took."""

    cpu: float
    wall: float

    def __truediv__(self, count: float) -> Sample:
        return Sample(self.cpu / count, self.wall / count)


Side = Callable[[int], Sample]


class Stopwatch:
    """``with Stopwatch() as watch: …``, then ``watch.sample``; or by hand where two tasks share it."""

    sample: Sample

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        self.sample = Sample(cpu - self._cpu, wall - self._wall)

    def __enter__(self) -> Stopwatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def timed_call(call: Callable[[], Any]) -> Side:
    """A side that calls a plain function."""

    def side(count: int) -> Sample:
        with Stopwatch() as watch:
            for _ in range(count):
                call()
        return watch.sample

    return side


async def timed_await(work: Callable[[], Awaitable[Any]], count: int) -> Sample:
    """Await the work so many times, after once that does not count."""
    await work()
    with Stopwatch() as watch:
        for _ in range(count):
            await work()
    return watch.sample


@frozen(kw_only=True)
class Bout:
    """What came of one duel: the samples of every round, for one time each."""

    ours: tuple[Sample, ...]
    theirs: tuple[Sample, ...]

    @property
    def ratios(self) -> list[float]:
        """How many times faster ours was, round by round."""
        return [theirs.cpu / ours.cpu for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def wall_ratio(self) -> float:
        """The same by the clock, its median."""
        return statistics.median(
            t.wall / o.wall for o, t in zip(self.ours, self.theirs, strict=True)
        )

    @property
    def our_us(self) -> float:
        return statistics.median(sample.cpu for sample in self.ours) * 1e6

    @property
    def their_us(self) -> float:
        return statistics.median(sample.cpu for sample in self.theirs) * 1e6


def fight(theirs: Side, ours: Side, *, rounds: int = ROUNDS, seconds: float = SECONDS) -> Bout:
    """Time both sides in turn; each goes first every other time."""
    counts = {True: calibrated(ours, seconds), False: calibrated(theirs, seconds)}
    samples: dict[bool, list[Sample]] = {True: [], False: []}
    for number in range(rounds):
        for is_ours in (True, False) if number % 2 else (False, True):
            tidy()
            count = counts[is_ours]
            samples[is_ours].append((ours if is_ours else theirs)(count) / count)
    return Bout(ours=tuple(samples[True]), theirs=tuple(samples[False]))


def fight_for_more(
    few: tuple[Side, Side], many: tuple[Side, Side], more: int, *, rounds: int = ROUNDS
) -> Bout:
    """What each further one costs: the difference between many and few, divided by how many more they are.

    Args:
        few: Theirs and ours with few of them.
        many: Theirs and ours with ``more`` of them added.
        more: How many were added.
    """
    sides = {
        ("theirs", 0): few[0],
        ("ours", 0): few[1],
        ("theirs", 1): many[0],
        ("ours", 1): many[1],
    }
    counts = {key: calibrated(side, SECONDS) for key, side in sides.items()}
    further: dict[str, list[Sample]] = {"theirs": [], "ours": []}
    for number in range(rounds):
        taken: dict[tuple[str, int], Sample] = {}
        for key in sorted(sides, reverse=bool(number % 2)):
            tidy()
            taken[key] = sides[key](counts[key]) / counts[key]
        for whose, samples in further.items():
            low, high = taken[whose, 0], taken[whose, 1]
            samples.append(
                Sample(max(high.cpu - low.cpu, 1e-9), max(high.wall - low.wall, 1e-9)) / more
            )
    return Bout(ours=tuple(further["ours"]), theirs=tuple(further["theirs"]))


def tidy() -> None:
    """Give every sample the same start: no garbage of the last one, and nothing old for the collector to look at.

    The published kernel keeps every session that was opened, so the heap grows from sample to sample; without this the
    collector's work on those would be charged to the side that is timed. What is alive between two samples stays for good.
    """
    gc.collect()
    gc.freeze()


def calibrated(side: Side, seconds: float) -> int:
    """How many times make one sample."""
    count = 1
    while True:
        took = side(count).cpu
        if took >= seconds / 4 or count > 1_000_000:
            return max(1, int(count * seconds / max(took, 1e-9)))
        count *= 4
