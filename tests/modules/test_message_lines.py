"""Lines out of chunks: whole, in order, and in time that grows with their size only."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.modules._shared.message_lines import LineSplitter, LineTooLong

CHUNK = 4096


def cpu_seconds(work: Callable[[], object]) -> float:
    """The least processor time of several runs: what else the machine does only adds to it."""
    times = []
    for _ in range(5):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def split(size: int) -> list[bytes]:
    """One long line that arrives in small chunks."""
    lines, chunk = LineSplitter(size + 1), b"x" * CHUNK
    found = [line for _ in range(size // CHUNK) for line in lines.feed(chunk)]
    return found + lines.feed(b"\n")


def test_a_line_of_four_times_the_size_takes_about_four_times_the_work():
    assert [len(line) for line in split(8 << 20)] == [8 << 20]
    ratio = cpu_seconds(lambda: split(16 << 20)) / cpu_seconds(lambda: split(4 << 20))
    assert ratio < 8  # 4 if the work is linear, 16 if it is quadratic


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_the_lines_are_those_of_the_whole_stream(chunks):
    lines = LineSplitter(1000)
    found = [line for chunk in chunks for line in lines.feed(chunk)]
    assert found == b"".join(chunks).split(b"\n")[:-1]


def test_a_line_that_is_too_long_is_refused_before_it_ends():
    lines = LineSplitter(10)
    assert lines.feed(b"12345\n1234567") == [b"12345"]
    with pytest.raises(LineTooLong, match="more than 10 bytes"):
        lines.feed(b"8901")
