"""Servers of tool-mcp killed at any moment, and sessions with servers cancelled at every point: nothing is lost or left."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.errors import ExecutionCancelled
from amplifier.testing import MODES, cancel_everywhere, wait_for
from tests.modules.tool_mcp.desk import new_session, opened, small


def left(mark: str) -> list[str]:
    """Command lines of running processes that hold the mark; asked of the system, not of the module."""
    listing = subprocess.run(["ps", "-axww", "-o", "stat=,pid=,args="], capture_output=True, text=True, check=True)
    return [line for line in listing.stdout.splitlines() if mark in line and not line.startswith("Z")]


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
async def test_every_kill_in_the_middle_of_a_call_is_one_error_and_one_restart(kills, tmp_path):
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
        assert len(left(mark)) == 1
    assert (failures, restarts) == (kills, kills)
    assert left(mark) == []


class World:
    """A session with a server: opened, one call, closed."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.session, _ = new_session({"small": small("--all", f"--name={self.mark}", stop_grace=0.3)})

    async def scenario(self) -> None:
        async with self.session as session:
            result = await session.coordinator.get("tools")["small_progress"].execute({})
            assert result.success

    def check(self) -> Iterable[str]:
        return [f"left running: {line}" for line in left(self.mark)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "points", [6, pytest.param(None, marks=[pytest.mark.long, pytest.mark.timeout(1200)])], ids=["some", "all"]
)
def test_a_session_with_a_server_can_be_cancelled_at_every_point(mode, points):
    report = cancel_everywhere(
        World,
        modes=[mode],
        clock="real",
        budget=60,
        max_points=points,
        expect=(ExecutionCancelled,),
        second_after=(1, 3),
    )
    assert report.violations == [], str(report)
