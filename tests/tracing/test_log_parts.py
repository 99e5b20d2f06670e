"""The files of a rotated log are read in order, also while they are written and rotated."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.modules.hooks.logging import EventFile
from amplifier.tracing import LogFollower, log_parts


def test_parts_are_ordered_oldest_first(tmp_path):
    for name in (
        "e.jsonl",
        "e.jsonl.2",
        "e.jsonl.10",
        "e.jsonl.1",
        "e.jsonl.01",
        "e.jsonl.x",
        "f.jsonl.3",
    ):
        (tmp_path / name).touch()
    found = [part.name for part in log_parts(tmp_path / "e.jsonl")]
    assert found == ["e.jsonl.10", "e.jsonl.2", "e.jsonl.1", "e.jsonl"]


def test_log_may_be_missing(tmp_path):
    assert log_parts(tmp_path / "none" / "e.jsonl") == []
    assert LogFollower(tmp_path / "e.jsonl").read() == []


def test_only_new_complete_lines_are_read(tmp_path):
    path = tmp_path / "e.jsonl"
    follower = LogFollower(path)
    path.write_bytes(b"one\ntw")
    assert follower.read(to_end=False) == [b"one\n"]
    with path.open("ab") as file:
        file.write(b"o\n\nthree")
    assert follower.read(to_end=False) == [b"two\n"]
    assert follower.read(to_end=True) == [b"three"]


def test_incomplete_line_before_next_writer_counts(tmp_path):
    path = tmp_path / "e.jsonl"
    follower = LogFollower(path)
    path.write_bytes(b'{"ts":"1"}\n{"ts":"')
    assert follower.read(to_end=False) == [b'{"ts":"1"}\n']
    file = EventFile(path)
    file.open()
    file.append(b'{"ts":"2"}\n')
    file.close()
    assert follower.read(to_end=False) == [b'{"ts":"\n', b'{"ts":"2"}\n']


def test_file_with_reused_inode_is_read_anew(tmp_path):
    path = tmp_path / "e.jsonl"
    follower = LogFollower(path)
    path.write_bytes(b"one\ntwo\n")
    follower.read()
    path.write_bytes(
        b"1st\n2nd\n3rd\n"
    )  # keeps the inode, as a file that takes the place of a removed one may
    assert follower.read() == [b"1st\n", b"2nd\n", b"3rd\n"]


def test_fifo_instead_of_log_is_error(tmp_path):
    os.mkfifo(tmp_path / "e.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        LogFollower(tmp_path / "e.jsonl").read()


@given(st.lists(st.integers(0, 30), max_size=12))
def test_rotating_log_is_read_completely_in_order(tmp_path_factory, bursts):
    path = tmp_path_factory.mktemp("log") / "e.jsonl"
    file = EventFile(path, 1024, 100)
    file.open()
    follower = LogFollower(path)
    written: list[bytes] = []
    found: list[bytes] = []
    for burst in bursts:
        for _ in range(burst):
            written.append(b'{"ts":"%06d%s"}\n' % (len(written), b"x" * 90))
            file.append(written[-1])
        found += follower.read(to_end=False)
    file.close()
    assert found == written
