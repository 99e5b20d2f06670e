"""The virtual time of the kit: timers cost nothing, work outside the loop takes its time, and a stuck loop is noticed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import anyio
import anyio.to_thread
import pytest
import trio

from amplifier.conformance.target import calls
from amplifier.conformance.target.calls import call_with_deadline, is_virtual, run_virtually, skipped

pytestmark = [
    pytest.mark.parametrize("backend", ["asyncio", "trio"]),
    pytest.mark.usefixtures("nothing_else_is_at_work"),
]


def test_a_timer_is_skipped_and_the_clocks_of_the_module_jump_along(backend, monkeypatch):
    for name in ("monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # restored afterwards
    calls.let_time_jump()

    async def wait() -> tuple[float, float, int]:
        started = anyio.current_time(), time.monotonic(), time.time_ns()
        await anyio.sleep(3600)
        return anyio.current_time() - started[0], time.monotonic() - started[1], time.time_ns() - started[2]

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


def test_a_call_that_waits_for_timers_may_take_longer_than_its_real_limit(backend):
    async def slow() -> str:
        await anyio.sleep(30)
        return "done"

    async def call() -> str:
        outcomes = [await call_with_deadline(anyio.sleep, 3600, seconds=1), await call_with_deadline(slow, seconds=1)]
        exact = await call_with_deadline(slow, seconds=10, is_exact=True)
        return ", ".join(map(str, [*outcomes, exact]))

    expected = "did not end within 60 s, returned str, did not end within 10 s"
    assert run_virtually(call, backend=backend) == expected
