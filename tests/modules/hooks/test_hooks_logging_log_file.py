"""The log file under faults: killed writers, incomplete lines, full disks, two writers. No line is written in part."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amplifier.modules.hooks import logging as hooks_logging
from amplifier.modules.hooks.logging import EventFile
from amplifier.testing import TestCoordinator
from tests._support.child_process import run_child
from tests._support.tree import ROOT
from tests.modules.hooks.test_hooks_together import lines

KILLS = int(os.environ.get("AMPLIFIER_TEST_KILLS", "60")) // 3
LINE = b'{"ts":"2026-01-01T00:00:00+00:00","event":"tool:pre","data":"' + "é".encode() + b'"}\n'


def whole_lines(path: Path) -> list[Any]:
    """The records of a log in which a writer may have left the beginning of a line."""
    rows = []
    for line in path.read_bytes().splitlines(keepends=True):
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def append(path: Path, *texts: bytes) -> None:
    file = EventFile(path)
    file.open()
    try:
        for text in texts:
            file.append(text)
    finally:
        file.close()
        file.close()


def readable(path: Path) -> list[bytes]:
    """The lines that are whole: a killed writer or a full disk may have left the beginning of others."""
    return [line for line in path.read_bytes().splitlines(keepends=True) if line == LINE]


@pytest.mark.parametrize("size", range(len(LINE)))
def test_torn_line_of_killed_writer_stays_separate(tmp_path, size):
    path = tmp_path / "e.jsonl"
    path.write_bytes(LINE + LINE[:size])
    append(path, LINE)
    assert path.read_bytes() == LINE + LINE[:size] + (b"\n" if size else b"") + LINE


class HalfOf:
    """Replaces `os` in the module and writes only the beginning of the next few texts."""

    def __init__(self, times: int, *, error: int | None = None, then: Any = None) -> None:
        self._times = times
        self._error = error
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, fd: int, data: bytes) -> int:
        if self._times == 0:
            return os.write(fd, data)
        self._times -= 1
        if self._error is not None:
            raise OSError(self._error, os.strerror(self._error))
        written = os.write(fd, data[: len(data) // 2])
        if self._then is not None:
            self._then()
        return written


def test_lines_after_partial_write_are_whole(tmp_path, monkeypatch):
    path = tmp_path / "e.jsonl"
    file = EventFile(path)
    file.open()
    file.append(LINE)
    other = path.open("ab", buffering=0)
    monkeypatch.setattr(hooks_logging, "os", HalfOf(2, then=lambda: other.write(b"\n" + LINE)))
    for _ in range(2):
        with pytest.raises(OSError, match="only part of a line"):
            file.append(LINE)
    file.append(LINE)
    other.close()
    file.close()
    assert readable(path) == [LINE] * 4


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
async def test_failing_disk_is_logged_once(tmp_path, monkeypatch, caplog, error):
    """Lost lines are counted, and writing resumes."""
    coordinator = TestCoordinator("s-1")
    close = await hooks_logging.mount(coordinator, {"path": str(tmp_path / "e.jsonl")})
    log = coordinator.session_state["hooks-logging"][0]
    monkeypatch.setattr(hooks_logging, "os", HalfOf(3, error=error))
    for number in range(5):
        assert (await coordinator.hooks.emit("tool:pre", {"n": number})).action == "continue"
    assert (log.written, log.lost) == (2, 3)
    assert [line["data"]["n"] for line in lines(tmp_path / "e.jsonl")] == [3, 4]
    close()
    close()
    recorded = [record.getMessage() for record in caplog.records if "hooks-logging" in record.name]
    assert len([text for text in recorded if "cannot be written" in text]) == 1
    assert len([text for text in recorded if "3 events were not written" in text]) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_full_disk_never_breaks_turn(tmp_path, backend):
    """With a limit on the size of files, which the system enforces as it does a full disk: in part, then not at all."""
    program = """
    import resource
    from amplifier.modules.hooks import logging as hooks_logging
    from amplifier.testing import TestCoordinator
    path = sys.argv[2]

    async def main():
        coordinator = TestCoordinator("s")
        close = await hooks_logging.mount(coordinator, {"path": path})
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        for number in range(200):
            result = await coordinator.hooks.emit("tool:pre", {"n": number, "text": "x" * (number % 97)})
            assert result.action == "continue"
        now = coordinator.session_state["hooks-logging"][0]
        close()
        print_line(now.written, now.lost)

    anyio.run(main, backend=backend)
    """
    path = tmp_path / "e.jsonl"
    ended = run_child(program, backend, str(path))
    assert ended.code == 0, ended.errors
    written, lost = map(int, ended.lines[-1].split())
    assert written + lost == 200
    assert lost > 100
    assert len(whole_lines(path)) == written
    assert 9_000 < path.stat().st_size <= 10_000


WRITER = """
import os, sys
import anyio
from amplifier.modules.hooks import logging as hooks_logging
from amplifier.testing import TestCoordinator

async def main(path, seed):
    coordinator = TestCoordinator("s")
    await hooks_logging.mount(coordinator, {"path": path})
    number = 0
    while True:
        await coordinator.hooks.emit("tool:pre", {"seed": seed, "n": number, "text": "x" * (number * 7919 % 60_000)})
        os.write(1, b"%d\\n" % number)
        number += 1

import trio, anyio._backends._trio, anyio._backends._asyncio  # noqa
for line in sys.stdin:  # one child per line, forked: starting an interpreter for each would take minutes
    backend, seed, path = line.rstrip("\\n").split(" ", 2)
    child = os.fork()
    if child == 0:
        anyio.run(main, path, int(seed), backend=backend)
        os._exit(1)
    os.write(1, b"child %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


def test_killed_writer_loses_no_acknowledged_line(tmp_path):
    path = tmp_path / "e.jsonl"
    acknowledged: set[tuple[int, int]] = set()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for seed in range(KILLS):
            wanted = random.Random(seed).choice([0, 1, 3, 10, 30])
            writers.stdin.write(f"{'trio' if seed % 2 else 'asyncio'} {seed} {path}\n")
            writers.stdin.flush()
            child, seen = 0, 0
            for line in writers.stdout:
                word, *rest = line.split()
                if word == "child":
                    child = int(rest[0])
                elif word == "dead":
                    break
                else:
                    acknowledged.add((seed, int(word)))
                    seen += 1
                    if seen > wanted and child:
                        os.kill(child, signal.SIGKILL)
                        child = (
                            0  # lines that it had written may still come; it may be gone by then
                        )
        writers.stdin.close()
    found = [(line["data"]["seed"], line["data"]["n"]) for line in whole_lines(path)]
    assert len(acknowledged) >= KILLS
    assert acknowledged <= set(found), "acknowledged events are lost"
    assert len(found) == len(set(found))
    for seed in range(KILLS):
        numbers = [n for one, n in found if one == seed]
        assert numbers == list(range(len(numbers))), "something in the middle is missing"
