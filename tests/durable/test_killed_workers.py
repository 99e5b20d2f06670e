"""Real worker processes are killed, drained and suspended at random moments, Postgres is restarted, and others continue their turns.

No result at the wrong call, nothing acknowledged is lost or repeated, no tool that is declared as not repeatable runs twice, and no more
calls are repeated than were running when something happened. Where workers are only drained, none is repeated or interrupted.
``AMPLIFIER_TEST_SEED`` gives other moments. ``AMPLIFIER_TEST_KILLS``, ``_PAUSES`` and ``_RESTARTS`` give other numbers to the longest test.
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
from tests._support.engine_servers import Postgres
from tests.durable.agents import eventually, open_engine, until
from tests.durable.worker_processes import LEASE, WorkerProcesses, worker_processes
from tests.modules.durable_agent import ANSWERS, TOOLS, transcript_problems

SEED = os.environ.get("AMPLIFIER_TEST_SEED", "0")
KILLS, PAUSES, RESTARTS = (
    int(os.environ.get(f"AMPLIFIER_TEST_{name}") or count)
    for name, count in (("KILLS", 100), ("PAUSES", 20), ("RESTARTS", 5))
)
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
        for step in await engine._do(
            lambda turn=turn: engine._turns.client.list_workflow_steps(turn)
        ):
            kind, _, rest = step["function_name"].partition(" ")
            if kind == "tool":
                results[session, rest.rpartition("/")[2]] = step["output"]
    return {key: str(result.get("output") or result) for key, result in results.items()}


def some_ways(count: int, *ways: str) -> list[str]:
    """Return so many random ways to disturb workers."""
    return random.Random(f"{SEED} {count}").choices(ways, k=count)


async def disturb_workers(
    kind: str,
    backend: str,
    place: str,
    folder: Path,
    ways: list[str],
    patience: float,
    server: Postgres | None = None,
) -> Counter[str]:
    """Kill, drain or pause workers while they run turns, or restart their server.

    Args:
        kind: The database.
        backend: The backend of the workers.
        place: A folder, or the URL of a database.
        folder: For effects.
        ways: ``kill``, ``drain``, ``pause`` or ``restart``, one after another.
        patience: Seconds for all of it.
        server: The server to restart.
    """
    chance = random.Random(f"{SEED} {kind} {backend}")
    counted: Counter[str] = Counter()
    turns: dict[str, str] = {}
    acknowledged: dict[tuple[str, str], tuple[str, int]] = {}
    paused: dict[int, float] = {}

    def times(session: str, call: str) -> int:
        return sum(each == call for each, _ in effects_of(folder, session))

    async def keep_busy(engine: DurableEngine) -> list[str]:
        states = [
            await engine.status(turn) for session, turn in turns.items() if session not in done
        ]
        for status in states:
            if status.is_final:
                done.add(status.session_id)
        while len(turns) - len(done) < OPEN_TURNS:
            session = f"s{len(turns)}"
            turns[session] = await engine.start(session, "go")
        return [status.worker or "" for status in states if status.state == "running"]

    async def disturb(workers: WorkerProcesses, way: str, process: int) -> None:
        if way == "restart":
            assert server is not None
            await anyio.to_thread.run_sync(server.stop)
            await anyio.to_thread.run_sync(server.start)
        elif way == "pause":
            await anyio.to_thread.run_sync(workers.suspend, process)
            # Sometimes for less than a lease, sometimes for so long that others have its turns.
            paused[process] = time.monotonic() + chance.uniform(0.5, 2.5) * LEASE
        else:
            await anyio.to_thread.run_sync(getattr(workers, way), process)

    async def keep_staff(workers: WorkerProcesses) -> None:
        for process in [
            process for process, moment in paused.items() if time.monotonic() >= moment
        ]:
            workers.wake(process)
            del paused[process]
        # One may give up while its server is away, as a supervisor expects.
        for process in [process for process in workers.living if not workers.is_there(process)]:
            workers.living.remove(process)
            counted["gave up"] += 1
        while len(workers.living) < WORKERS[kind]:
            await anyio.to_thread.run_sync(workers.start)

    done: set[str] = set()
    left = list(ways)
    # A turn may be running in any number of workers that are killed.
    with (
        worker_processes(kind, backend, place, folder, attempts=10_000) as workers,
        anyio.fail_after(patience),
    ):
        async with open_engine(kind, place, lease=LEASE, patience=120.0) as engine:
            await keep_busy(engine)
            wanted = 0
            while left:
                await keep_staff(workers)
                busy = await keep_busy(engine)
                # A moment that nothing marks, after some progress, however slow this machine is.
                await anyio.sleep(chance.uniform(0, 0.1))
                if all_effects(folder) < wanted:
                    continue
                awake = [process for process in workers.living if process not in paused]
                running = [
                    process for process in awake if any(f"-{process}-" in name for name in busy)
                ]
                if not running:
                    continue
                snapshot = await recorded(
                    engine, {name: turn for name, turn in turns.items() if name not in done}
                )
                acknowledged |= {key: (text, times(*key)) for key, text in snapshot.items()}
                counted[left[-1]] += 1
                await disturb(workers, left.pop(), chance.choice(running))
                wanted = all_effects(folder) + chance.randrange(12)
            for process in paused:
                workers.wake(process)
            paused.clear()
            began = time.monotonic()
            for session, turn in turns.items():
                await keep_staff(workers)
                assert await engine.result(turn) == "All done."
                check_session(
                    folder, session, await engine.messages(session), acknowledged, counted
                )
            counted["seconds at the end"] = round(time.monotonic() - began)
    counted["turns"] = len(turns)
    harm = counted["kill"] + counted["pause"] + counted["restart"] * WORKERS[kind]
    assert counted["repeated"] <= harm * OPEN_TURNS * len(TOOLS)
    assert harm or not counted["interrupted"]
    assert counted["late"] <= counted["pause"] * OPEN_TURNS * len(TOOLS)
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
            assert by_call[call] <= 1, (
                f"{call} of {session} ran {by_call[call]} times and is not repeatable"
            )
        if (session, call) in acknowledged:
            known, times = acknowledged[session, call]
            assert (text if "interrupted" not in known else "interrupted") == (
                known if "interrupted" not in known else "interrupted"
            )
            # A worker that was suspended in a call continues with it, although another one has the turn.
            late = by_call[call] - times
            assert late == 0 or 0 <= late <= counted["pause"], (
                f"{call} of {session} was acknowledged and ran again"
            )
            counted["late"] += late
        counted["interrupted"] += "interrupted" in text
        counted["repeated"] += max(0, by_call[call] - 1)
        counted["effects"] += by_call[call]


KINDS = [
    pytest.param("sqlite", marks=pytest.mark.slow),
    pytest.param("postgres", marks=pytest.mark.long),
]


@pytest.mark.parametrize("answered", ["while no worker runs", "when the next worker asks"])
@pytest.mark.parametrize("kind", KINDS)
async def test_question_of_killed_worker_is_answered(
    kind, place, tmp_path, anyio_backend_name, answered
):
    async with open_engine(kind, place, lease=LEASE, patience=120.0) as engine:
        with (
            worker_processes(kind, anyio_backend_name, place, tmp_path, "asks") as workers,
            anyio.fail_after(110),
        ):
            turn = await engine.start("s", "pay")
            await anyio.to_thread.run_sync(workers.start)
            [question] = (await until(engine, turn, lambda status: status.questions)).questions
            workers.kill(workers.living[0])
            if answered == "while no worker runs":
                await engine.approve(turn, question.question_id, "Allow")
            await anyio.to_thread.run_sync(workers.start)
            [second] = workers.living
            if answered == "when the next worker asks":
                await until(
                    engine,
                    turn,
                    lambda status: f"-{second}-" in str(status.worker) and status.questions,
                )
                await engine.approve(turn, question.question_id, "Allow")
            assert await engine.result(turn) == "Paid."
            status = await engine.status(turn)
            assert f"-{second}-" in str(status.worker)
            assert status.attempt >= 2
    assert len(effects_of(tmp_path, "s")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_turns_of_killed_workers_go_on_elsewhere(kind, place, tmp_path, anyio_backend_name):
    ways = some_ways(3, "kill", "kill", "drain")
    await disturb_workers(kind, anyio_backend_name, place, tmp_path, ways, 280)


@pytest.mark.parametrize("kind", KINDS)
async def test_turns_of_drained_workers_continue_elsewhere(
    kind, place, tmp_path, anyio_backend_name
):
    counted = await disturb_workers(kind, anyio_backend_name, place, tmp_path, ["drain"] * 3, 280)
    assert (counted["drain"], counted["repeated"], counted["interrupted"]) == (3, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_children_of_killed_workers_continue(kind, place, tmp_path, anyio_backend_name):
    chance = random.Random(f"{SEED} children {kind} {anyio_backend_name}")
    with (
        worker_processes(
            kind, anyio_backend_name, place, tmp_path, "children", attempts=10_000
        ) as workers,
        anyio.fail_after(280),
    ):
        async with open_engine(kind, place, lease=LEASE, patience=120.0) as engine:
            turns = {
                f"s{number}": await engine.start(f"s{number}", "go") for number in range(OPEN_TURNS)
            }
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
                [result] = [
                    each["content"]
                    for each in await engine.messages(session)
                    if each["role"] == "tool"
                ]
                assert "All done." in result
                times = Counter(call for call, _ in effects_of(tmp_path, session))
                for call in (
                    f"c{answer}.{place}" for answer in range(ANSWERS) for place in range(len(TOOLS))
                ):
                    if TOOLS[int(call.partition(".")[2])] == "again":
                        assert times[call] >= 1
                    else:
                        assert times[call] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres"])
async def test_turns_survive_pauses_and_restart(
    kind, place, tmp_path, anyio_backend_name, postgres_server
):
    ways = ["restart", "pause", "pause"]
    await disturb_workers(kind, anyio_backend_name, place, tmp_path, ways, 280, postgres_server)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_ten_kills(kind, place, tmp_path, anyio_backend_name):
    await disturb_workers(
        kind, anyio_backend_name, place, tmp_path, some_ways(10, "kill", "kill", "drain"), 850
    )


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_many_kills(kind, place, tmp_path, anyio_backend_name, request, capsys):
    ways = ["kill"] * KILLS + ["pause"] * PAUSES
    server = None
    if kind == "postgres":
        server = request.getfixturevalue("postgres_server")
        ways += ["restart"] * RESTARTS
    random.Random(SEED).shuffle(ways)
    counted = await disturb_workers(kind, anyio_backend_name, place, tmp_path, ways, 3500, server)
    with capsys.disabled():
        print(f"\n{kind} {anyio_backend_name}: {dict(counted)}")
