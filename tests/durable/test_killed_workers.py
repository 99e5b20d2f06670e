"""Real worker processes are killed (SIGKILL) or drained (SIGTERM) at random moments, and others go on with their turns, on both backends.

No result at the wrong call, nothing acknowledged is lost or repeated, no tool that is declared as not repeatable runs twice, and no more
calls are repeated than were running when a worker was killed; where workers are only drained, none is repeated or interrupted. ``AMPLIFIER_TEST_SEED`` gives other moments, ``AMPLIFIER_TEST_KILLS`` another
number of kills to the longest test.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier.durable import DurableEngine
from tests.durable.agents import eventually, open_engine, until
from tests.durable.worker_processes import LEASE, worker_processes
from tests.modules.durable_agent import ANSWERS, TOOLS, transcript_problems

SEED = os.environ.get("AMPLIFIER_TEST_SEED", "0")
KILLS = os.environ.get("AMPLIFIER_TEST_KILLS")
OPEN_TURNS = 4
WORKERS = {"sqlite": 1, "postgres": 2}
"""A file has one worker process."""


def effects_of(folder: Path, session: str) -> list[tuple[str, str]]:
    """Call id and text of every effect of a session."""
    file = folder / f"{session}.effects"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], line) for line in lines]


def all_effects(folder: Path) -> int:
    """How many effects there are."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.effects"))


async def recorded(engine: Any, open_turns: dict[str, str]) -> dict[tuple[str, str], str]:
    """The tool results of open turns that are recorded, by session and call."""
    results: dict[tuple[str, str], Any] = {}
    for session, turn in open_turns.items():
        for step in await engine._do(lambda turn=turn: engine._turns.client.list_workflow_steps(turn)):
            kind, _, rest = step["function_name"].partition(" ")
            if kind == "tool":
                results[session, rest.rpartition("/")[2]] = step["output"]
    return {key: str(result.get("output") or result) for key, result in results.items()}


async def kill_workers(
    kind: str,
    backend: str,
    place: str,
    folder: Path,
    signals: int,
    patience: float,
    ways: tuple[str, ...] = ("kill", "kill", "drain"),
) -> Counter[str]:
    """Send so many signals to workers while they run turns."""
    chance = random.Random(f"{SEED} {kind} {backend}")
    counted: Counter[str] = Counter()
    turns: dict[str, str] = {}
    acknowledged: dict[tuple[str, str], tuple[str, int]] = {}

    def times(session: str, call: str) -> int:
        return sum(each == call for each, _ in effects_of(folder, session))

    async def keep_busy(engine: DurableEngine) -> list[str]:
        states = [await engine.status(turn) for session, turn in turns.items() if session not in done]
        for status in states:
            if status.is_final:
                done.add(status.session_id)
        while len(turns) - len(done) < OPEN_TURNS:
            session = f"s{len(turns)}"
            turns[session] = await engine.start(session, "go")
        return [status.worker or "" for status in states if status.state == "running"]

    done: set[str] = set()
    # A turn may be running in any number of workers that are killed.
    with worker_processes(kind, backend, place, folder, attempts=10_000) as workers, anyio.fail_after(patience):
        async with open_engine(kind, place, lease=LEASE, patience=120.0) as engine:
            await keep_busy(engine)
            for _ in range(WORKERS[kind]):
                await anyio.to_thread.run_sync(workers.start)
            wanted = 0
            while counted["kill"] + counted["drain"] < signals:
                busy = await keep_busy(engine)
                # A moment that nothing marks, after some progress, however slow this machine is.
                await anyio.sleep(chance.uniform(0, 0.1))
                if all_effects(folder) < wanted:
                    continue
                running = [pid for pid in workers.living if any(f"-{pid}-" in name for name in busy)]
                if not running:
                    continue
                snapshot = await recorded(engine, {name: turn for name, turn in turns.items() if name not in done})
                acknowledged |= {key: (text, times(*key)) for key, text in snapshot.items()}
                way = chance.choice(ways)
                await anyio.to_thread.run_sync(getattr(workers, way), chance.choice(running))
                counted[way] += 1
                wanted = all_effects(folder) + chance.randrange(12)
                await anyio.to_thread.run_sync(workers.start)
            began = time.monotonic()
            for session, turn in turns.items():
                assert await engine.result(turn) == "All done."
                check_session(folder, session, await engine.messages(session), acknowledged, counted)
            counted["seconds at the end"] = round(time.monotonic() - began)
    counted["turns"] = len(turns)
    assert counted["repeated"] <= counted["kill"] * OPEN_TURNS * len(TOOLS)
    assert counted["kill"] or not counted["interrupted"]
    return counted


def check_session(
    folder: Path,
    session: str,
    messages: list[dict],
    acknowledged: dict[tuple[str, str], tuple[str, int]],
    counted: Counter[str],
) -> None:
    assert transcript_problems(messages, is_whole=True) == []
    assert [m["content"] for m in messages if m["role"] == "user"] == ["go"]
    assert messages[-1]["content"] == "All done."
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert len(results) == ANSWERS * len(TOOLS)
    effects = effects_of(folder, session)
    by_call = Counter(call for call, _ in effects)
    written = {line for _, line in effects}
    for call, text in results.items():
        name = TOOLS[int(call.partition(".")[2])]
        assert text in written or "interrupted" in text, "a result without its effect"
        if name == "again":
            assert "interrupted" not in text
        else:
            assert by_call[call] <= 1, f"{call} of {session} ran {by_call[call]} times and is not repeatable"
        if (session, call) in acknowledged:
            known, times = acknowledged[session, call]
            assert (text if "interrupted" not in known else "interrupted") == (
                known if "interrupted" not in known else "interrupted"
            )
            assert by_call[call] == times, f"{call} of {session} was acknowledged and ran again"
        counted["interrupted"] += "interrupted" in text
        counted["repeated"] += max(0, by_call[call] - 1)
        counted["effects"] += by_call[call]


KINDS = [pytest.param("sqlite", marks=pytest.mark.slow), pytest.param("postgres", marks=pytest.mark.long)]


@pytest.mark.parametrize("answered", ["while no worker runs", "when the next worker asks"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_question_is_answered_after_the_worker_that_asked_was_killed(
    kind, place, tmp_path, anyio_backend_name, answered
):
    async with open_engine(kind, place, lease=LEASE, patience=120.0) as engine:
        with worker_processes(kind, anyio_backend_name, place, tmp_path, "asks") as workers, anyio.fail_after(110):
            turn = await engine.start("s", "pay")
            await anyio.to_thread.run_sync(workers.start)
            [question] = (await until(engine, turn, lambda status: status.questions)).questions
            workers.kill(workers.living[0])
            if answered == "while no worker runs":
                await engine.approve(turn, question.question_id, "Allow")
            await anyio.to_thread.run_sync(workers.start)
            [second] = workers.living
            if answered == "when the next worker asks":
                await until(engine, turn, lambda status: f"-{second}-" in str(status.worker) and status.questions)
                await engine.approve(turn, question.question_id, "Allow")
            assert await engine.result(turn) == "Paid."
            status = await engine.status(turn)
            assert f"-{second}-" in str(status.worker)
            assert status.attempt >= 2
    assert len(effects_of(tmp_path, "s")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_turns_of_killed_workers_go_on_elsewhere(kind, place, tmp_path, anyio_backend_name):
    counted = await kill_workers(kind, anyio_backend_name, place, tmp_path, 3, 280)
    assert counted["kill"] + counted["drain"] == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_turns_of_drained_workers_go_on_elsewhere_and_no_call_is_interrupted(
    kind, place, tmp_path, anyio_backend_name
):
    counted = await kill_workers(kind, anyio_backend_name, place, tmp_path, 3, 280, ways=("drain",))
    assert (counted["drain"], counted["repeated"], counted["interrupted"]) == (3, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_children_of_killed_workers_go_on_where_they_were(kind, place, tmp_path, anyio_backend_name):
    chance = random.Random(f"{SEED} children {kind} {anyio_backend_name}")
    with (
        worker_processes(kind, anyio_backend_name, place, tmp_path, "children", attempts=10_000) as workers,
        anyio.fail_after(280),
    ):
        async with open_engine(kind, place, lease=LEASE, patience=120.0) as engine:
            turns = {f"s{number}": await engine.start(f"s{number}", "go") for number in range(OPEN_TURNS)}
            for _ in range(WORKERS[kind]):
                await anyio.to_thread.run_sync(workers.start)
            for wanted in sorted(chance.sample(range(1, 40), 4)):

                async def has_so_many(wanted: int = wanted) -> bool:
                    return all_effects(tmp_path) >= wanted

                await eventually(has_so_many, 280)
                await anyio.to_thread.run_sync(workers.kill, chance.choice(workers.living))
                await anyio.to_thread.run_sync(workers.start)
            for session, turn in turns.items():
                assert await engine.result(turn) == "All done."
                [result] = [each["content"] for each in await engine.messages(session) if each["role"] == "tool"]
                assert "All done." in result
                times = Counter(call for call, _ in effects_of(tmp_path, session))
                for call in (f"c{answer}.{place}" for answer in range(ANSWERS) for place in range(len(TOOLS))):
                    if TOOLS[int(call.partition(".")[2])] == "again":
                        assert times[call] >= 1
                    else:
                        assert times[call] <= 1


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_ten_kills(kind, place, tmp_path, anyio_backend_name):
    await kill_workers(kind, anyio_backend_name, place, tmp_path, 10, 850)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_many_kills(kind, place, tmp_path, anyio_backend_name, capsys):
    counted = await kill_workers(kind, anyio_backend_name, place, tmp_path, int(KILLS or 100), 1700)
    with capsys.disabled():
        print(f"\n{kind} {anyio_backend_name}: {dict(counted)}")
