"""Servers of tool-mcp killed at any moment, and sessions with servers cancelled at every point: nothing is lost or left."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.errors import ExecutionCancelled
from amplifier.testing import MODES, cancel_everywhere, wait_for
from tests._support.processes import running_processes
from tests._support.tree import ROOT
from tests.modules.tools.mcp.desk import new_session, opened, served, small


@pytest.mark.parametrize(
    "kills", [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
async def test_killed_call_is_one_error_and_restart(kills, tmp_path):
    mark = uuid.uuid4().hex
    failures, restarts = 0, 0
    async with opened({"small": small("--all", f"--name={mark}")}) as desk:
        for number in range(kills):
            file = tmp_path / f"notes-{number}"
            results: list[Any] = []

            async def call(file: Path = file, results: list[Any] = results) -> None:
                results.append(await desk.call("small_hang", note=str(file)))

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                assert await wait_for(lambda file=file: file.exists(), timeout=60)  # type: ignore[misc]
                os.kill(desk.status("small")["pid"], signal.SIGKILL)
            failures += "server 'small' was killed by SIGKILL" in results[0].error["message"]
            restarts += (await desk.call("small_echo", text=str(number))).output == str(number)
        assert desk.status("small")["starts"] == kills + 1
        assert (
            len(running_processes(mark)) == 1
        )  # the server; the supervisor does not show what it runs
    assert (failures, restarts) == (kills, kills)
    assert running_processes(mark) == []


async def test_process_outside_group_ends_with_server():
    mark = uuid.uuid4().hex
    async with opened({"small": small("--all", "--escapee", f"--name={mark}")}):
        assert await wait_for(
            lambda: len(running_processes(mark)) == 2, timeout=60
        )  # server, escapee
    assert running_processes(mark) == []


async def test_crash_is_noticed_despite_open_output():
    mark = uuid.uuid4().hex
    async with opened({"small": small("--all", "--escapee", f"--name={mark}")}) as desk:
        assert (await desk.call("small_crash")).error["type"] == "ServerCrashed"
        assert (await desk.call("small_echo", text="back")).output == "back"
        assert await wait_for(lambda: len(running_processes(mark)) == 2, timeout=60)
    assert running_processes(mark) == []


PROGRAM = """
import sys, json, anyio
from tests._support.tree import ROOT
from tests.modules.tools.mcp.desk import opened

async def main(server):
    async with opened({"small": server}):
        print("open", flush=True)
        await anyio.sleep_forever()

anyio.run(main, json.loads(sys.argv[1]), backend=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_servers_end_with_killed_agent(loop):
    mark = uuid.uuid4().hex
    server = json.dumps(small("--ignore-term", "--escapee", f"--name={mark}"))
    command = [sys.executable, "-c", PROGRAM, server, loop]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "open\n"
        assert len(running_processes(mark)) >= 2
        agent.kill()
    assert anyio.run(partial(wait_for, lambda: running_processes(mark) == [], timeout=60))


class World:
    """A session with a server: opened, one call, closed."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.session, _ = new_session(
            {"small": small("--all", f"--name={self.mark}", stop_grace=0.3)}
        )

    async def scenario(self) -> None:
        async with self.session as session:
            result = await session.coordinator.get("tools")["small_progress"].execute({})
            assert result.success

    def check(self) -> Iterable[str]:
        return [f"left running: {line}" for line in running_processes(self.mark)]


def swept(world: Any, mode: str, points: int | None) -> Any:
    """The report of cancellations at so many points, or at all."""
    stopped = (ExecutionCancelled,)
    return cancel_everywhere(
        world,
        modes=[mode],
        clock="real",
        budget=60,
        max_points=points,
        expect=stopped,
        second_after=(1, 3),
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "points",
    [6, pytest.param(None, marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
    ids=["some", "all"],
)
def test_session_with_server_cancelled_anywhere(mode, points):
    report = swept(World, mode, points)
    assert report.violations == [], str(report)


class WebWorld:
    """The same with a remote server."""

    def __init__(self, url: str) -> None:
        self.session, _ = new_session({"web": {"url": url}})

    async def scenario(self) -> None:
        async with self.session as session:
            result = await session.coordinator.get("tools")["web_add"].execute({"a": 1, "b": 2})
            assert result.success

    def check(self) -> Iterable[str]:
        gc.collect()  # generators that the SDK leaves to the collector, while the warning about them is ignored
        return []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served("sdk_http_server.py", "0") as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.filterwarnings("ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(6, marks=pytest.mark.slow),
        pytest.param(None, marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
    ],
    ids=["some", "all"],
)
def test_session_with_remote_server_cancelled_anywhere(mode, points, url):
    report = swept(partial(WebWorld, url), mode, points)
    # On trio the sweep also reports generators that the SDK leaves to the garbage collector, as in test_http.py.
    noise = re.compile("Async generator '(httpx2|httpcore2|mcp)[.]")
    ours = [
        each
        for each in report.violations
        if not (each.kind == "NOISE" and noise.match(each.detail))
    ]
    assert ours == [], str(report)
