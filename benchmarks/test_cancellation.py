"""Stopping a turn at once while its tools sleep: how long `execute` takes to come back, and what is left of the tools.

Times by the clock, because that is what a user waits. What they cost in processor time is in the
notes, for when the machine was busy. That everything has unwound is counted.
"""

from __future__ import annotations

import contextlib
import statistics

import anyio
import pytest

import amplifier
from benchmarks.board import micro
from benchmarks.duel import QUICK, Sample, Stopwatch
from benchmarks.kernels import OURS, OURS_ON_TRIO, THEIRS, Kernel


class Sleepers:
    """Tools that sleep: how many began and how many were unwound."""

    def __init__(self, seconds: float, expected: int) -> None:
        self._seconds, self._expected = seconds, expected
        self.began = self.unwound = 0
        self.all_asleep = anyio.Event()

    async def __call__(self) -> None:
        self.began += 1
        if self.began % self._expected == 0:
            self.all_asleep.set()
        try:
            await anyio.sleep(self._seconds)
        finally:
            self.unwound += 1


def stopping(
    kernel: Kernel, tools: int, times: int, seconds: float = 60
) -> tuple[list[Sample], Sleepers]:
    """What it took from the request to the end of `execute`, and the tools."""
    taken: list[Sample] = []

    async def main() -> Sleepers:
        sleepers = Sleepers(seconds, tools)
        async with kernel.session(kernel.loader(tools=tools, tool=sleepers)) as session:
            token = session.coordinator.cancellation
            for _ in range(times):
                sleepers.all_asleep = anyio.Event()
                watch = Stopwatch()

                async def request(watch: Stopwatch = watch) -> None:
                    await sleepers.all_asleep.wait()
                    watch.start()
                    token.request_immediate()

                async with anyio.create_task_group() as group:
                    group.start_soon(request)
                    with contextlib.suppress(amplifier.ExecutionCancelled):
                        await session.execute("go")
                    watch.stop()
                taken.append(watch.sample)
                token.reset()
        return sleepers

    return taken, kernel.run(main)


@pytest.mark.parametrize(
    ("kernel", "words"), [(OURS, ""), (OURS_ON_TRIO, ", trio")], ids=["asyncio", "trio"]
)
def test_stopping_a_turn_while_a_tool_sleeps(board, kernel, words):
    taken, sleepers = stopping(kernel, 1, 100 if QUICK else 1000)
    theirs = published_kernel_waits()
    p50, p99 = (statistics.quantiles((sample.wall for sample in taken), n=100)[n] for n in (49, 98))
    cost = micro(statistics.median(sample.cpu for sample in taken) * 1e6)
    for name, value in (("p50", p50), ("p99", p99)):
        board.figures(
            f"stopping at once, a tool asleep{words}: {name}",
            theirs * 1e3,
            value * 1e3,
            "ms",
            note=f"{cost} of processor time{words}; the published kernel waits for the tool, "
            "which slept 0.5 s here",
        )
    assert sleepers.began == sleepers.unwound == len(taken)


def published_kernel_waits() -> float:
    """How long the published kernel takes with a tool that sleeps half a second."""
    taken, sleepers = stopping(THEIRS, 1, 1, seconds=0.5)
    assert taken[0].wall > 0.4, "it used to wait for the tool"
    assert sleepers.began == 1
    return taken[0].wall
