from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel.runtime import loop as timestamp_file
from amplifier.kernel.runtime.loop import timestamp

EARLIEST, LATEST = 0, int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1_000_000_000
moments = st.integers(EARLIEST, LATEST)


class Clock:
    """Replaces the time module inside `timestamp`: the moments come from a list."""

    def __init__(self, *nanoseconds: int) -> None:
        self._moments = list(nanoseconds)

    def time_ns(self) -> int:
        return self._moments.pop(0)

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


def stamps_at(*nanoseconds: int) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timestamp_file, "time", Clock(*nanoseconds))
        return [timestamp() for _ in nanoseconds]


def test_stamp_is_present_moment():
    before = datetime.now(UTC)
    stamped = datetime.fromisoformat(timestamp())
    assert before - timedelta(microseconds=1) <= stamped <= datetime.now(UTC)


@given(st.lists(moments, min_size=1, max_size=6))
def test_every_moment_reads_back(nanoseconds):
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    read = [datetime.fromisoformat(text) for text in stamps_at(*nanoseconds)]
    assert read == [epoch + timedelta(microseconds=moment // 1000) for moment in nanoseconds]


@given(st.lists(moments, min_size=2, max_size=6))
def test_stamps_sort_as_moments(nanoseconds):
    in_order = sorted(nanoseconds)
    assert stamps_at(*in_order) == sorted(stamps_at(*in_order))


def test_threads_see_own_second_only():
    problems: list[str] = []

    def stamp_often() -> None:
        for _ in range(2000):
            before = datetime.now(UTC)
            stamped = datetime.fromisoformat(timestamp())
            if not before - timedelta(microseconds=1) <= stamped <= datetime.now(UTC):
                problems.append(f"{stamped} is not after {before}")

    threads = [threading.Thread(target=stamp_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
