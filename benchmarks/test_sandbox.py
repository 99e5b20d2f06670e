"""What a sandbox adds to a command of tool-bash: a command that does nothing, in each sandbox that works here, and without one."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from pathlib import Path

import anyio
import pytest

from amplifier.modules.tools import bash as tool_bash
from amplifier.testing import TestCoordinator
from benchmarks.duel import QUICK
from tests._support.bubblewrap import find_bubblewrap

TIMES = 10 if QUICK else 60


def processor_seconds() -> float:
    """Of this process and of every command that has ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def commands(folder: Path, sandbox: str) -> tuple[float, float]:
    """Median seconds of a command by the clock, and processor seconds of each."""
    coordinator = TestCoordinator()
    await tool_bash.mount(coordinator, {"working_dir": str(folder), "sandbox": sandbox})
    (tool,) = coordinator.get("tools").values()
    await tool.execute({"command": "true"})
    walls = []
    before = processor_seconds()
    for _ in range(TIMES):
        started = time.perf_counter()
        result = await tool.execute({"command": "true"})
        walls.append(time.perf_counter() - started)
        assert result.success, result
    spent = (processor_seconds() - before) / TIMES
    return statistics.median(walls), spent


@pytest.mark.orientation
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there are sandboxes for Linux only"
)
@pytest.mark.parametrize("sandbox", ["off", "bwrap"])
def test_a_command_that_does_nothing(board, sandbox, tmp_path, monkeypatch):
    if sandbox == "bwrap":
        program = find_bubblewrap()
        assert program is not None, "bubblewrap is missing: run `make parts`"
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{Path(program).parent}")
        monkeypatch.chdir(
            tmp_path
        )  # no program is trusted that comes from the repository around the current folder
    wall, spent = anyio.run(commands, tmp_path, sandbox)
    board.figure(
        f"tool-bash, a command that does nothing, sandbox {sandbox}",
        wall * 1e3,
        "ms",
        note=f"{spent * 1e3:.1f} ms of processor time",
    )
