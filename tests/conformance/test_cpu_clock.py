"""The clock that excludes time spent waiting for a CPU."""

from __future__ import annotations

import time
from types import SimpleNamespace

from amplifier.conformance.target import calls as clock
from amplifier.conformance.target.calls import cpu_wait, process_cpu_wait, worked_time


def test_the_clock_never_runs_faster_than_the_monotonic_clock():
    start, real = worked_time(), time.monotonic()
    total = sum(range(200_000))
    assert total > 0
    assert 0 <= worked_time() - start <= time.monotonic() - real + 0.01


def test_a_wait_between_the_two_readings_does_not_turn_the_clock_back(monkeypatch):
    state = {"now": 100.0, "waited": 1.0}

    def monotonic() -> float:
        now = state["now"]
        state.update(now=105.0, waited=6.0)  # the thread loses its CPU for 5 seconds right after the first reading
        return now

    monkeypatch.setattr(clock, "_skipped", [0.0])  # what other tests of this process have skipped
    monkeypatch.setattr(clock, "cpu_wait", lambda thread: state["waited"])
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=monotonic))
    assert worked_time() == 99.0


def test_the_cpu_wait_of_each_thread_is_read(monkeypatch, tmp_path):
    for thread, delay in ((1, 2_000_000_000), (2, 500_000_000)):
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "schedstat").write_text(f"7 {delay} 3\n")
    monkeypatch.setattr(clock, "_THREADS", tmp_path)
    assert cpu_wait(1) == 2.0
    assert process_cpu_wait() == 2.5
    assert cpu_wait(3) == 0.0  # it has ended, or the system does not report it
