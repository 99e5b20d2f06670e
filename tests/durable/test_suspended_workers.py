"""Real worker processes that are suspended (SIGSTOP), woken and killed, or whose loop is blocked, on both databases and backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier.durable import TurnFailedError, TurnStoppedError
from amplifier.durable._turns import WORKERS
from tests.durable.agents import agent, answering, eventually, open_engine, tool, working
from tests.durable.worker_processes import worker_processes

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.long)]
SEVERAL = [pytest.param("postgres", marks=pytest.mark.long)]
"""Databases that several workers share."""

pytestmark = pytest.mark.slow


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def reached(folder: Path, where: str) -> None:
    await eventually(anyio.Path(folder / where).exists)


async def beats_of(engine: Any, process: int) -> int:
    """How often a process has beaten; 0 while it is not known."""
    found = await engine._do(lambda: engine._turns.client.list_workflows(queue_name=WORKERS))
    return next((row.attributes["beats"] for row in found if f"-{process}-" in row.workflow_id), 0)


async def wait_for_beats(engine: Any, process: int, beats: int) -> None:
    async def has_beaten() -> bool:
        return await beats_of(engine, process) >= beats

    await eventually(has_beaten)


@pytest.mark.parametrize("where", ["look", "answer"])
@pytest.mark.parametrize("kind", KINDS)
async def test_stop_holds_for_suspended_worker(kind, place, tmp_path, anyio_backend_name, where):
    """It looks for news so rarely that it goes on with the turn before it hears of the stop."""
    with worker_processes(
        kind, anyio_backend_name, place, tmp_path, "halts", lease=30.0, poll=2.0
    ) as workers:
        async with open_engine(kind, place, patience=60.0) as engine:
            if where == "answer":
                (tmp_path / "go on look").touch()
            turn = await engine.start("s", "go")
            process = await anyio.to_thread.run_sync(workers.start)
            await reached(tmp_path, f"at {where}")
            workers.suspend(process)
            await engine.stop(turn)
            (tmp_path / f"go on {where}").touch()
            workers.wake(process)
            with anyio.fail_after(100), pytest.raises(TurnStoppedError):
                await engine.result(turn)
            results = [m["content"] for m in await engine.messages("s") if m["role"] == "tool"]
    assert len(lines(tmp_path / "s.effects")) == (where == "answer")
    if where == "look":
        # It was there before the worker knew of the stop. The model may be asked once more, but nothing begins.
        assert results in (
            ["two shelves"],
            ["two shelves", "not started: the turn is being stopped"],
        )


@pytest.mark.parametrize("kind", SEVERAL)
async def test_turn_claimed_by_forgotten_worker_continues(
    kind, place, tmp_path, anyio_backend_name
):
    """It beats rarely, is taken for dead and forgotten, claims a turn and dies before its next beat."""
    with worker_processes(
        kind, anyio_backend_name, place, tmp_path, "halts", lease=600.0, poll=0.05
    ) as workers:
        async with open_engine(kind, place, patience=60.0) as engine:
            process = await anyio.to_thread.run_sync(workers.start)

            async def is_forgotten():
                return not await beats_of(engine, process)

            await eventually(lambda: beats_of(engine, process))
            async with working(engine, agent(answering("unused"))):
                await eventually(is_forgotten)
            turn = await engine.start("s", "go")
            await reached(tmp_path, "at look")
            assert f"-{process}-" in str((await engine.status(turn)).worker)
            workers.kill(process)
            make_session = agent(
                answering("Done."),
                *(tool(n, lambda given: "x", repeatable=True) for n in ("look", "pay")),
            )
            async with working(engine, make_session):
                with anyio.fail_after(60):
                    assert await engine.result(turn) == "Done."


@pytest.mark.parametrize("kind", SEVERAL)
async def test_blocking_tool_keeps_its_turn(kind, place, tmp_path, anyio_backend_name):
    """Its worker beats while its loop stands still, however long the machine takes for it; no one takes the turn away meanwhile."""
    with worker_processes(
        kind, anyio_backend_name, place, tmp_path, "blocks", lease=5.0
    ) as workers:
        async with open_engine(kind, place, lease=60.0, patience=60.0) as engine:
            turn = await engine.start("s", "go")
            process = await anyio.to_thread.run_sync(workers.start)
            await reached(tmp_path, "s.effects")
            async with working(
                engine,
                agent(answering("Taken."), tool("block", lambda given: "x", repeatable=True)),
            ):
                for _ in range(2):
                    await wait_for_beats(engine, process, await beats_of(engine, process) + 1)
                (tmp_path / "go on block").touch()
                with anyio.fail_after(60):
                    assert await engine.result(turn) == "Done."
            status = await engine.status(turn)
    assert (status.attempt, lines(tmp_path / "s.effects")) == (1, [f"blocked {process}"])


@pytest.mark.parametrize("kind", SEVERAL)
async def test_long_stalled_loop_loses_turns(kind, place, tmp_path, anyio_backend_name):
    with worker_processes(
        kind, anyio_backend_name, place, tmp_path, "blocks", lease=5.0, stuck=2.0
    ) as workers:
        async with open_engine(kind, place, patience=60.0) as engine:
            turn = await engine.start("s", "go")
            await anyio.to_thread.run_sync(workers.start)
            await reached(tmp_path, "s.effects")
            async with working(
                engine,
                agent(answering("Taken."), tool("block", lambda given: "x", repeatable=True)),
            ):
                with anyio.fail_after(100):
                    assert await engine.result(turn) == "Taken."


@pytest.mark.parametrize("kind", SEVERAL)
async def test_suspended_worker_does_not_judge_others(kind, place, tmp_path, anyio_backend_name):
    """Both are suspended, as by a closed lid. The one that wakes first has not seen the other one beat for a long time.

    Its first look decides. From then on the other one has the time of a lease, which is long enough for a busy machine.
    """
    lease = 15.0
    with worker_processes(
        kind, anyio_backend_name, place, tmp_path, "halts", lease=lease
    ) as workers:
        async with open_engine(kind, place, patience=60.0) as engine:
            turn = await engine.start("s", "go")
            busy = await anyio.to_thread.run_sync(workers.start)
            await reached(tmp_path, "at look")
            judge = await anyio.to_thread.run_sync(workers.start)
            await wait_for_beats(engine, judge, 3)  # it has seen the other one
            for process in (busy, judge):
                workers.suspend(process)
            (tmp_path / "seconds later").write_text(str(lease + 1.0))  # what this is about
            seen = await beats_of(engine, judge)
            workers.wake(judge)
            await wait_for_beats(engine, judge, seen + 2)  # its first look is over
            workers.wake(busy)
            for where in ("look", "answer"):
                (tmp_path / f"go on {where}").touch()
            with anyio.fail_after(60):
                assert await engine.result(turn) == "Paid."
            status = await engine.status(turn)
    assert (status.attempt, f"-{busy}-" in str(status.worker)) == (1, True)
    assert len(lines(tmp_path / "s.effects")) == 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
async def test_turn_killing_workers_fails_alone(kind, place, tmp_path, anyio_backend_name):
    with worker_processes(kind, anyio_backend_name, place, tmp_path, "kills", lease=3.0) as workers:
        async with (
            open_engine(kind, place, patience=60.0) as engine,
            anyio.create_task_group() as group,
        ):
            bad = await engine.start("bad", "go")
            good = [await engine.start(f"s{number}", "go") for number in range(3)]

            async def supervise():
                while True:
                    killed = {int(line) for line in lines(tmp_path / "deaths")}
                    for process in killed.intersection(workers.living):
                        workers.living.remove(process)
                    if not workers.living:
                        await anyio.to_thread.run_sync(workers.start)
                    await anyio.sleep(0.05)

            group.start_soon(supervise)
            with anyio.fail_after(500):
                for turn in good:
                    assert await engine.result(turn) == "All done."
                with pytest.raises(
                    TurnFailedError, match="3 workers died while they ran this turn"
                ) as caught:
                    await engine.result(bad)
            assert caught.value.error_type == "TooManyDeaths"
            group.cancel_scope.cancel()
    assert len(lines(tmp_path / "deaths")) == 3
