"""The scripted turn: two model calls, one tool, eight events; more of each; many sessions in one event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.duel import QUICK, Sample, Side, Stopwatch, fight, fight_for_more
from benchmarks.kernels import OURS, OURS_ON_TRIO, THEIRS, Kernel, Prepare, Work


def turning(**options: Any) -> Prepare:
    async def prepare(kernel: Kernel) -> Work:
        session = await kernel.opened(**options)
        return lambda: session.execute("go")

    return prepare


@pytest.mark.parametrize(("kernel", "words"), [(OURS, ""), (OURS_ON_TRIO, ", trio")])
def test_a_scripted_turn(board, kernel, words):
    theirs, ours = THEIRS.timed(turning()), kernel.timed(turning())
    board.duel(f"turn: 2 model calls, 1 tool, 8 events{words}", theirs, ours)


def test_a_turn_with_five_handlers_on_every_event(board):
    prepare = turning(handlers=5)
    board.duel("turn, 5 handlers on every event", THEIRS.timed(prepare), OURS.timed(prepare))


@pytest.mark.parametrize(
    ("words", "options", "more"),
    [
        ("turn: each further step", {"steps": 6}, 5),
        ("turn: each further parallel tool", {"tools": 11}, 10),
    ],
)
def test_what_each_further_one_costs(board, words, options, more):
    few, many = turning(), turning(**options)
    bout = fight_for_more(
        (THEIRS.timed(few), OURS.timed(few)), (THEIRS.timed(many), OURS.timed(many)), more
    )
    board.score(words, bout)


# ── many sessions in one event loop ──


def crowd(kernel: Kernel, sessions: int) -> Side:
    """Turns of so many sessions at once; ``count`` is turns, in whole waves. The model lets others run."""

    def side(count: int) -> Sample:
        waves = max(1, count // sessions)

        async def main() -> Sample:
            loader = kernel.loader(pausing=True)
            opened = [kernel.session(loader) for _ in range(sessions)]
            for session in opened:
                await session.initialize()
            await asyncio.gather(*(session.execute("go") for session in opened))
            with Stopwatch() as watch:
                for _ in range(waves):
                    await asyncio.gather(*(session.execute("go") for session in opened))
            return watch.sample / (waves * sessions / count)

        return kernel.run(main)

    return side


ROUNDS = 3 if QUICK else 7
MANY = 300 if QUICK else 1000


@pytest.mark.parametrize("sessions", [100, MANY])
def test_turns_of_many_sessions(board, sessions):
    bout = fight(crowd(THEIRS, sessions), crowd(OURS, sessions), rounds=ROUNDS)
    per_second = {"ours": f"{1e6 / bout.our_us:,.0f}/s", "theirs": f"{1e6 / bout.their_us:,.0f}/s"}
    board.score(f"turns per second, {sessions:,} sessions in one loop", bout, **per_second)
