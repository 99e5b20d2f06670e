"""Workers of several versions of the code: no turn continues with the wrong one, unless someone decides so."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from tests.durable.agents import (
    agent,
    answering,
    eventually,
    hand_over,
    open_engine,
    tool,
    until,
    working,
)
from tests.durable.worker_processes import worker_processes

KINDS = pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)]
)


@KINDS
async def test_begun_turn_waits_for_its_version(kind, place):
    make_session = agent(
        answering("Done.", "New."), tool("hang", lambda given: "again", repeatable=True)
    )
    async with (
        open_engine(kind, place, version="v1") as old,
        open_engine(kind, place, version="v2") as new,
    ):
        turn = await old.start("s", "go")
        await hand_over(old, repeatable=True)
        async with working(new, make_session):
            # A new turn runs on the latest version, before which the other one would have been begun.
            later = await old.start("t", "go")
            assert await new.result(later) == "Done."
            assert (await new.status(turn)).state == "queued"
        async with working(old, make_session):
            assert await old.result(turn) == "New."
        assert (await old.status(turn)).attempt == 2


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_file_runs_new_turns_with_any_version(kind, place):
    """The one worker of a file gets new turns, also after a rollback, and within the same second."""
    make_session = agent(answering(*["Done."] * 4))
    async with (
        open_engine(kind, place, version="v1") as old,
        open_engine(kind, place, version="v2") as new,
    ):
        for number, engine in enumerate((old, new, old, new)):
            turn = await engine.start(f"s{number}", "go")
            async with working(engine, make_session):
                assert await engine.result(turn) == "Done."


@KINDS
async def test_resumed_turn_continues_with_engine_version(kind, place):
    calls: list[str] = []

    def look(given):
        calls.append("look")
        return "two shelves"

    looks = tool("look", look, repeatable=True)
    async with (
        open_engine(kind, place, version="v1") as old,
        open_engine(kind, place, version="v2") as new,
    ):
        turn = await old.start("s", "go")
        begun = anyio.Event()

        async def hang(given):
            begun.set()
            await anyio.sleep_forever()

        first = agent(
            answering([("look", {})], [("hang", {})]), looks, tool("hang", hang, repeatable=True)
        )
        async with working(old, first):
            await begun.wait()
        async with working(
            new,
            agent(answering("Done."), looks, tool("hang", lambda given: "again", repeatable=True)),
        ):
            await new.resume(turn)
            assert await new.result(turn) == "Done."
        results = [m["content"] for m in await new.messages("s") if m["role"] == "tool"]
    assert (results, calls) == (["two shelves", "again"], ["look"])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgres"])
async def test_old_and_new_workers_run_together(kind, place, tmp_path, anyio_backend_name):
    """The old worker is killed in the middle of its turn. The new one leaves the turn to another old one."""

    def workers_of(version):
        return worker_processes(
            kind, anyio_backend_name, place, tmp_path, "halts", lease=2.0, version=version
        )

    async with open_engine(kind, place, lease=2.0) as engine:
        with workers_of("v1") as old, workers_of("v2") as new, anyio.fail_after(100):
            turn = await engine.start("s", "go")
            await anyio.to_thread.run_sync(old.start)
            await eventually(anyio.Path(tmp_path / "at look").exists)
            await anyio.to_thread.run_sync(new.start)
            [process] = old.living
            await anyio.to_thread.run_sync(old.kill, process)
            await until(engine, turn, lambda status: status.state == "queued")
            (tmp_path / "go on look").touch()
            (tmp_path / "go on answer").touch()
            later = await engine.start("t", "go")
            assert await engine.result(later) == "Paid."
            assert worker_of(await engine.status(later)) == new.living[0]
            assert (await engine.status(turn)).state == "queued"
            await anyio.to_thread.run_sync(old.start)
            assert await engine.result(turn) == "Paid."
            assert worker_of(await engine.status(turn)) == old.living[0]


def worker_of(status) -> int:
    """The process that ran a turn last."""
    return int(str(status.worker).split("-")[-2])
