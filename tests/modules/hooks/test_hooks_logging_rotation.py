"""Rotation of the event log: sizes, order, several writers, killed and stopped ones. No line is lost or torn."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amplifier.modules.hooks import logging as hooks_logging
from amplifier.modules.hooks.logging import EventFile
from amplifier.testing import TestCoordinator
from amplifier.tracing import LogFollower, log_parts
from tests._support.tree import ROOT


def line(number: int, size: int = 100) -> bytes:
    text = b'{"ts":"","n":%d,"x":"' % number
    return text + b"x" * max(0, size - len(text) - 3) + b'"}\n'


def numbers(path: Path, torn: int = 0) -> list[Any]:
    """Those of all lines in the order of the log; every line has to be whole, but for as many as writers were killed."""
    found = []
    for text in LogFollower(path).read():
        try:
            found.append(json.loads(text)["n"])
        except ValueError:
            torn -= 1
            assert torn >= 0, text
    return found


def opened(path: Path, max_bytes: int = 1024, keep: int = 3) -> EventFile:
    file = EventFile(path, max_bytes, keep)
    file.open()
    return file


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_full_file_is_renamed_and_oldest_removed(tmp_path):
    path = tmp_path / "e.jsonl"
    file = opened(path)
    for number in range(100):
        file.append(line(number))
    file.close()
    assert names(tmp_path) == ["e.jsonl", "e.jsonl.1", "e.jsonl.2", "e.jsonl.3"]
    assert all(part.stat().st_size == 1000 for part in log_parts(path))
    assert all(part.stat().st_mode & 0o777 == 0o600 for part in tmp_path.iterdir())
    assert numbers(path) == list(range(60, 100))


def test_nothing_is_renamed_without_max_bytes(tmp_path):
    path = tmp_path / "e.jsonl"
    file = EventFile(path)
    file.open()
    for number in range(100):
        file.append(line(number))
    file.close()
    assert names(tmp_path) == ["e.jsonl"]


def test_overlong_line_has_own_file(tmp_path):
    path = tmp_path / "e.jsonl"
    file = opened(path)
    for number, size in enumerate([100, 5000, 100]):
        file.append(line(number, size))
    file.close()
    assert [part.stat().st_size for part in log_parts(path)] == [100, 5000, 100]
    assert numbers(path) == [0, 1, 2]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(30, 1500)), max_size=40), st.integers(1, 4)
)
def test_concurrent_writers_keep_newest_lines_ordered(tmp_path_factory, writes, keep):
    path = tmp_path_factory.mktemp("log") / "e.jsonl"
    files = [opened(path, 1024, keep) for _ in range(3)]
    for number, (writer, size) in enumerate(writes):
        files[writer].append(line(number, size))
    for file in files:
        file.close()
    found = numbers(path)
    assert found == list(range(len(writes) - len(found), len(writes)))
    parts = log_parts(path)
    assert len(parts) <= keep + 1
    assert all(part.stat().st_size <= 1024 or part.read_bytes().count(b"\n") == 1 for part in parts)


def test_crash_between_renames_loses_nothing(tmp_path):
    path = tmp_path / "e.jsonl"
    for number in (3, 2):  # 1 has its new name, the newest file does not have it yet
        path.with_name(f"e.jsonl.{number}").write_bytes(line(number))
    path.write_bytes(line(9, 1000))
    file = opened(path)
    file.append(line(10))
    file.close()
    assert numbers(path) == [3, 2, 9, 10]
    assert [part.name for part in log_parts(path)] == [
        "e.jsonl.3",
        "e.jsonl.2",
        "e.jsonl.1",
        "e.jsonl",
    ]


def test_smaller_keep_removes_files(tmp_path):
    path = tmp_path / "e.jsonl"
    for number in (7, 5, 2, 1):
        path.with_name(f"e.jsonl.{number}").write_bytes(line(number))
    other = tmp_path / "e.jsonl.old"
    other.touch()
    path.write_bytes(line(9, 1000))
    file = opened(path, keep=2)
    file.append(line(10))
    file.close()
    assert numbers(path) == [1, 9, 10]
    assert other.exists()


def test_locked_log_is_written_without_waiting(tmp_path):
    path = tmp_path / "e.jsonl"
    file = opened(path)
    lock = os.open(path, os.O_RDWR)
    for how in (
        fcntl.LOCK_SH,
        fcntl.LOCK_EX,
    ):  # a process that was stopped while it wrote, or while it rotated
        fcntl.flock(lock, how)
        for number in range(20):
            file.append(line(number))
    os.close(lock)
    assert names(tmp_path) == ["e.jsonl"]
    file.append(line(40))
    file.close()
    assert numbers(path) == [*range(20), *range(20), 40]
    assert path.stat().st_size == 100


def test_file_renamed_by_other_is_renamed_once(tmp_path, monkeypatch):
    path = tmp_path / "e.jsonl"
    one, other, lock = opened(path), opened(path), fcntl.flock
    for number in range(10):
        one.append(line(number))

    def lock_later(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        other.append(line(10))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_later)
    one.append(line(11))
    one.close()
    other.close()
    assert numbers(path) == list(range(12))
    assert names(tmp_path) == ["e.jsonl", "e.jsonl.1"]


async def test_failing_rotation_is_reported_once(tmp_path, caplog):
    path = tmp_path / "e.jsonl"
    coordinator = TestCoordinator("s")
    (tmp_path / "e.jsonl.1").mkdir()
    (tmp_path / "e.jsonl.1" / "in the way").touch()
    close = await hooks_logging.mount(
        coordinator, {"path": str(path), "max_bytes": 1024, "keep": 1}
    )
    for number in range(30):
        await coordinator.hooks.emit("tool:pre", {"n": number})
    assert coordinator.session_state["hooks-logging"][0].lost == 0
    close()
    assert len(path.read_bytes().splitlines()) == 30
    assert (
        len([record for record in caplog.records if "cannot be rotated" in record.getMessage()])
        == 1
    )


async def test_module_rotates_and_closes_everything(tmp_path):
    path = tmp_path / "e.jsonl"
    coordinator = TestCoordinator("s")
    before = set(os.listdir("/dev/fd"))
    close = await hooks_logging.mount(
        coordinator, {"path": str(path), "max_bytes": 2000, "keep": 2}
    )
    for number in range(100):
        await coordinator.hooks.emit("tool:pre", {"n": number})
    close()
    close()
    assert [part.name for part in log_parts(path)] == ["e.jsonl.2", "e.jsonl.1", "e.jsonl"]
    found = [json.loads(text)["data"]["n"] for text in LogFollower(path).read()]
    assert found == list(range(100 - len(found), 100))
    # A descriptor of the listing itself may differ.
    assert len(set(os.listdir("/dev/fd")) - before) <= 1


WRITER = """
import os, sys
from pathlib import Path
from amplifier.modules.hooks.logging import EventFile

path, seed, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
file = EventFile(path, 20_000, 1000)
file.open()
for number in range(most):
    file.append(b'{"ts":"","n":[%d,%d],"x":"%s"}\\n' % (seed, number, b"x" * (number * 7919 % 900)))
    os.write(1, b"%d\\n" % number)
"""


def start(path: Path, seed: int, most: int, **options: Any) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(path), str(seed), str(most)]
    return subprocess.Popen(words, cwd=ROOT, text=True, **options)


def test_rotating_processes_lose_no_line(tmp_path):
    path = tmp_path / "e.jsonl"
    writers = [start(path, seed, 800, stdout=subprocess.DEVNULL) for seed in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    found = numbers(path)
    assert (
        len(log_parts(path)) > 3
    )  # how often a writer meets another one, and leaves rotating to a later line, is chance
    assert sorted(found) == [[seed, number] for seed in range(3) for number in range(800)]
    for seed in range(3):
        assert [number for one, number in found if one == seed] == list(range(800))


def test_killed_writer_does_not_block_rotation(tmp_path):
    path = tmp_path / "e.jsonl"
    acknowledged = []
    for seed in range(6):
        with start(path, seed, 10**6, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for text in writer.stdout:
                acknowledged.append([seed, int(text)])
                if int(text) == 100 + 37 * seed:
                    writer.send_signal(signal.SIGKILL)
                    break
            acknowledged += [[seed, int(text)] for text in writer.stdout.read().split()]
    found = numbers(path, torn=6)
    assert [one for one in acknowledged if one not in found] == []
    assert len(found) <= len(acknowledged) + 6
    assert max(part.stat().st_size for part in log_parts(path)) <= 20_000
