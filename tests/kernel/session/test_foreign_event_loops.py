"""Sessions on event loops that are neither plain asyncio nor plain trio: asyncio inside trio, and loops without threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ExecutionCancelled
from amplifier.testing import MockProvider, MockTool
from tests._support.tree import ROOT


def session_with(tool):
    model = MockProvider([[("look", {})], "Two shelves."])
    session = {"orchestrator": "loop-basic", "context": "context-simple"}
    return AmplifierSession({"session": session, "providers": [model], "tools": [tool]})


async def run_turn():
    async with session_with(MockTool("look", return_value="two shelves")) as session:
        assert await session.execute("what is there?") == "Two shelves."


async def stop_turn():
    """A turn is stopped while its tool runs, by code on the same loop."""
    begun = anyio.Event()

    async def hang(given):
        begun.set()
        await anyio.sleep_forever()

    async with (
        session_with(MockTool("look", respond=hang)) as session,
        anyio.create_task_group() as group,
    ):

        async def stop():
            await begun.wait()
            session.coordinator.cancellation.request_immediate()

        group.start_soon(stop)
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")


BESIDE_ASYNCIO = """
import trio, trio_asyncio
from amplifier.contracts.cancellation import running_asyncio_loop
from tests.kernel.session.test_foreign_event_loops import run_turn, stop_turn

async def in_asyncio_code():
    assert running_asyncio_loop() is not None
    await run_turn()
    await stop_turn()

async def main():
    async with trio_asyncio.open_loop():
        assert running_asyncio_loop() is None
        await run_turn()
        await stop_turn()
        await trio_asyncio.aio_as_trio(in_asyncio_code)()

trio.run(main)
print("done")
"""
"""In a process of its own: importing trio_asyncio changes asyncio, and has to come before anyone else uses that."""


def test_session_beside_foreign_loop_uses_own_backend():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BESIDE_ASYNCIO],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


class LoopWithoutThreads(asyncio.SelectorEventLoop):
    """As the loop of a workflow engine: nothing can call it from outside."""

    def call_soon_threadsafe(self, *args, **kwargs):  # type: ignore[override]
        raise NotImplementedError


@pytest.mark.parametrize("main", [run_turn, stop_turn])
def test_session_on_loop_without_threads(main):
    with asyncio.Runner(loop_factory=LoopWithoutThreads) as runner:
        runner.run(main())
