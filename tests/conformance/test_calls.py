"""Calls of foreign code in virtual time: how they ended, timers that cost nothing, work outside the loop, a stuck loop; and the clock that excludes waits for a CPU."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

from amplifier.conformance.inputs.server_process import server_ids
from amplifier.conformance.target import calls
from amplifier.conformance.target.calls import (
    Outcome,
    call_with_deadline,
    cpu_wait,
    is_virtual,
    process_cpu_wait,
    run_virtually,
    skipped,
    when_stuck,
    worked_time,
)


@pytest.fixture(params=["asyncio", "trio"])
def backend(request, monkeypatch):
    """A backend; what other tests of this process have started is not the work that virtual time waits for there."""
    children = {
        int(pid)
        for thread in threading.enumerate()
        for pid in Path(f"/proc/self/task/{thread.native_id}/children").read_text().split()
    }
    threads = set(threading.enumerate())
    may_act = calls._may_act
    monkeypatch.setattr(calls, "server_ids", lambda: {*server_ids(), *children})
    monkeypatch.setattr(calls, "_may_act", lambda thread: thread not in threads and may_act(thread))
    return request.param


async def raise_group_when_cancelled(*errors: Exception) -> None:
    try:
        await anyio.sleep_forever()
    except BaseException as gone:
        raise BaseExceptionGroup("cancelled", [gone, *errors]) from None


def call(function: Any, *args: Any, backend: str) -> Outcome:
    async def run() -> Outcome:
        return await call_with_deadline(function, *args)

    outcome: Outcome = run_virtually(run, backend=backend)
    return outcome


@pytest.mark.parametrize("errors", [(), (ValueError("too late"),)])
def test_a_group_with_the_cancellation_at_the_deadline_is_a_late_call(backend, errors):
    assert call(raise_group_when_cancelled, *errors, backend=backend).kind == "late"


def test_a_group_that_answers_a_cancellation_from_outside_is_raised(backend):
    outcomes = []

    async def run() -> None:
        with anyio.CancelScope() as scope:

            async def cancelled() -> None:
                scope.cancel()
                await raise_group_when_cancelled()

            outcomes.append(await call_with_deadline(cancelled))

    run_virtually(run, backend=backend)
    assert [outcome.kind for outcome in outcomes] == ["raised"]
    assert isinstance(outcomes[0].error, BaseExceptionGroup)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), BaseExceptionGroup("", [SystemExit(3)])]
)
def test_what_is_no_exception_is_an_outcome(backend, error):
    async def fail() -> None:
        raise error

    assert call(fail, backend=backend).error is error


async def poll() -> None:
    while True:  # noqa: ASYNC110 — polling is what is tested
        await anyio.sleep(0.01)


def test_a_call_that_polls_is_late_after_a_count_and_not_after_real_seconds(backend):
    assert call(poll, backend=backend).kind == "late"


def test_a_call_that_goes_on_after_its_deadline_counts_as_stuck(backend):
    def give_up() -> None:
        stuck.append(True)
        go_on.clear()

    stuck: list[bool] = []
    go_on = [True]

    async def deaf() -> None:
        with anyio.CancelScope(shield=True):
            while go_on:  # noqa: ASYNC110 — as above
                await anyio.sleep(1)

    with when_stuck(give_up):
        assert call(deaf, backend=backend).kind == "late"
    assert stuck == [True]


def test_a_timer_is_skipped_and_the_clocks_of_the_module_jump_along(backend, monkeypatch):
    for name in ("monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # restored afterwards
    calls.let_time_jump()

    async def wait() -> tuple[float, float, int]:
        started = anyio.current_time(), time.monotonic(), time.time_ns()
        await anyio.sleep(3600)
        return (
            anyio.current_time() - started[0],
            time.monotonic() - started[1],
            time.time_ns() - started[2],
        )

    before = skipped()
    by_loop, by_module, nanoseconds = run_virtually(wait, backend=backend)
    assert by_loop == pytest.approx(3600)
    assert by_module >= 3600
    assert nanoseconds >= 3600 * 10**9 - 10**6
    assert skipped() - before == pytest.approx(3600)
    assert not is_virtual()


class LateResults(dict):
    """Trio's idle worker threads; each gets its result delivered a moment after it is listed here."""

    def __setitem__(self, worker, value):
        super().__setitem__(worker, value)
        time.sleep(0.1)


def test_the_result_of_a_thread_that_has_just_ended_comes_before_a_deadline(backend, monkeypatch):
    cache = trio._core._thread_cache.THREAD_CACHE
    known, late = cache._idle_workers, LateResults()
    monkeypatch.setattr(cache, "_idle_workers", late)

    async def work() -> str | None:
        with anyio.move_on_after(3600):
            own = anyio.CapacityLimiter(1)
            return await anyio.to_thread.run_sync(str, "done", limiter=own, abandon_on_cancel=True)
        return None

    try:
        assert run_virtually(work, backend=backend) == "done"
    finally:
        known.update(late)


def test_a_deadline_does_not_pass_while_a_process_is_polled(backend):
    async def work() -> int:
        process = subprocess.Popen([sys.executable, "-c", "pass"])  # noqa: ASYNC220 — what a module may do
        with anyio.fail_after(30):
            while process.poll() is None:  # noqa: ASYNC110 — what a module may do
                await anyio.sleep(0.01)
        return process.returncode

    assert run_virtually(work, backend=backend) == 0


STUCK = """
import os, sys
import anyio
from amplifier.conformance.target.calls import run_virtually, when_stuck

async def wait():
    await anyio.sleep(100)
    with when_stuck(lambda: os._exit(7)):
        await anyio.Event().wait()

run_virtually(wait, backend=sys.argv[1])
"""


def test_a_loop_in_which_nothing_can_happen_any_more_is_noticed(backend):
    ended = subprocess.run([sys.executable, "-c", STUCK, backend], timeout=60, check=False)
    assert ended.returncode == 7


def test_a_call_that_waits_for_a_thread_is_given_up_in_real_time(backend):
    release = threading.Event()

    async def hang() -> None:
        await anyio.to_thread.run_sync(release.wait, abandon_on_cancel=True)

    async def call() -> str:
        outcome = await call_with_deadline(hang, seconds=0.05)
        release.set()
        return str(outcome)

    assert run_virtually(call, backend=backend) == "did not end within 0.05 s"


def test_a_call_that_waits_for_timers_may_take_longer_than_its_real_limit(backend, monkeypatch):
    monkeypatch.setattr(calls, "machine_load", lambda: 1.0)

    async def slow() -> str:
        await anyio.sleep(30)
        return "done"

    async def call() -> str:
        outcomes = [
            await call_with_deadline(anyio.sleep, 3600, seconds=1),
            await call_with_deadline(slow, seconds=1),
        ]
        exact = await call_with_deadline(slow, seconds=10, is_exact=True)
        return ", ".join(map(str, [*outcomes, exact]))

    expected = "did not end within 60 s, returned str, did not end within 10 s"
    assert run_virtually(call, backend=backend) == expected


def test_the_clock_never_runs_faster_than_the_monotonic_clock():
    start, real = worked_time(), time.monotonic()
    total = sum(range(200_000))
    assert total > 0
    assert 0 <= worked_time() - start <= time.monotonic() - real + 0.01


def test_a_wait_between_the_two_readings_does_not_turn_the_clock_back(monkeypatch):
    state = {"now": 100.0, "waited": 1.0}

    def monotonic() -> float:
        now = state["now"]
        state.update(
            now=105.0, waited=6.0
        )  # the thread loses its CPU for 5 seconds right after the first reading
        return now

    monkeypatch.setattr(calls, "_skipped", [0.0])  # what other tests of this process have skipped
    monkeypatch.setattr(calls, "cpu_wait", lambda thread: state["waited"])
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=monotonic))
    assert worked_time() == 99.0


def test_the_cpu_wait_of_each_thread_is_read(monkeypatch, tmp_path):
    for thread, delay in ((1, 2_000_000_000), (2, 500_000_000)):
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "schedstat").write_text(f"7 {delay} 3\n")
    monkeypatch.setattr(calls, "_THREADS", tmp_path)
    assert cpu_wait(1) == 2.0
    assert process_cpu_wait() == 2.5
    assert cpu_wait(3) == 0.0  # it has ended, or the system does not report it
