"""Runs that outlive a request: their log, the cursors of their clients, their one cancel, how long they are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from amplifier.shared_sessions import ClientLeft, LiveRun, LiveRuns, LiveSessions


@asynccontextmanager
async def served() -> AsyncIterator[LiveRuns[str]]:
    sessions: LiveSessions[None] = LiveSessions()
    async with sessions.running():
        yield LiveRuns(sessions.start_soon)


async def write_three(run: LiveRun[str]) -> None:
    for word in (b"one", b"two", b"three"):
        await run.write(word)


async def hang(run: LiveRun[str]) -> None:
    await run.write(b"begun")
    await anyio.sleep_forever()


async def read(run: LiveRun[str], after: int = 0) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    with run.log.reading(after) as reader:
        while news := await reader.next():
            found += news
    return found


async def test_clients_read_from_any_position():
    async with served() as runs:
        run = runs.start(write_three, "about", stays=None, name="a")
        assert await read(run) == [(1, b"one"), (2, b"two"), (3, b"three")]
        assert await read(run, after=2) == [(3, b"three")]
        assert await read(run, after=7) == []
        assert (runs.find("a"), run.about, run.has_begun) == (run, "about", True)
        assert (runs.forget("a"), runs.forget("a"), runs.find("a")) == (True, False, None)


async def test_events_wait_only_for_readers_that_are_busy():
    run: LiveRun[str] = LiveRun("about", None)
    is_flushed = False

    async def flush() -> None:
        nonlocal is_flushed
        await run.flush()
        is_flushed = True

    with run.log.reading(0) as reader:
        run.add(b"one")
        await run.flush()
        assert await reader.next() == [(1, b"one")]
        run.add(b"two")
        async with anyio.create_task_group() as group:
            group.start_soon(flush)
            await anyio.wait_all_tasks_blocked()
            # The reader is still busy with the first one.
            assert not is_flushed
            assert await reader.next() == [(2, b"two")]
            await anyio.wait_all_tasks_blocked()
            assert is_flushed


async def test_a_reader_that_has_left_is_not_waited_for():
    run: LiveRun[str] = LiveRun("about", None)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            with run.log.reading(0) as reader:
                run.add(b"one")
                assert await reader.next() == [(1, b"one")]
                run.add(b"two")
                group.start_soon(run.flush)
                await anyio.wait_all_tasks_blocked()


async def test_a_run_is_full_before_it_is_flushed():
    run: LiveRun[str] = LiveRun("about", None)
    run.add(b"small")
    assert not run.is_full
    run.add(bytes(100_000))
    assert run.is_full
    await run.flush()
    assert not run.is_full


@pytest.mark.parametrize("stays", [0, 30, None])
async def test_cancelling_waits_and_is_repeatable(stays):
    ended = False

    async def work(run: LiveRun[str]) -> None:
        nonlocal ended
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
            ended = True

    async with served() as runs:
        run = runs.start(work, "", stays=stays)
        await anyio.wait_all_tasks_blocked()
        for _ in range(2):
            await run.cancel()
            assert ended
        assert (run.error, run.log.is_closed) == (None, True)


async def test_run_error_is_kept_and_contained():
    async def fail(run: LiveRun[str]) -> None:
        raise ValueError("no")

    async with served() as runs:
        other, failed = runs.start(hang, "", stays=None), runs.start(fail, "", stays=30)
        await failed.over.wait()
        assert (str(failed.error), other.over.is_set()) == ("no", False)


@pytest.mark.parametrize(("stays", "raises"), [(0, True), (30, False), (None, False)])
async def test_refusing_client_ends_required_run_only(stays, raises):
    written: list[Any] = []

    async def work(run: LiveRun[str]) -> None:
        run.is_refused = True
        try:
            await run.write(b"one")
        except ClientLeft as left:
            written.append(left)

    async with served() as runs:
        await runs.start(work, "", stays=stays).over.wait()
    assert bool(written) is raises


async def test_oldest_finished_runs_make_room(monkeypatch):
    monkeypatch.setattr("amplifier.shared_sessions.runs._MAX_KEPT", 2)
    async with served() as runs:
        running = runs.start(hang, "", stays=None, name="running")
        for name in ("a", "b", "c", "d"):
            await runs.start(write_three, "", stays=None, name=name).over.wait()
        assert [name for name in ("running", "a", "b", "c", "d") if runs.find(name)] == [
            "running",
            "b",
            "c",
            "d",
        ]
        monkeypatch.setattr("amplifier.shared_sessions.runs._MAX_BYTES", 11)
        runs.start(hang, "", stays=None)
        assert [name for name in ("running", "b", "c", "d") if runs.find(name)] == ["running", "d"]
        assert runs.find("running") is running
