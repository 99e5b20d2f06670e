"""Every oracle of the cancellation sweep speaks on a planted defect and is silent on the mended twin, in every mode."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from subprocess import DEVNULL

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from amplifier.testing import MODES, SweepReport, cancel_everywhere

ALL = MODES
SCOPED = ("trio", "asyncio-scope")
ON_ASYNCIO = ("asyncio-scope", "asyncio-native", "asyncio-native-twice")
NATIVE = ("asyncio-native", "asyncio-native-twice")

Scenario = Callable[[], Awaitable[object]]


def sweep(scenario: Scenario, mode: str) -> SweepReport:
    return cancel_everywhere(lambda: scenario, modes=(mode,), max_steps=300, budget=1000)


async def work() -> None:
    for _ in range(3):
        await anyio.sleep(1)


# ── HANG ──


async def cleanup_waits_in_vain() -> None:
    try:
        await work()
    except BaseException:
        while True:
            with contextlib.suppress(BaseException), anyio.CancelScope(shield=True):
                await anyio.Event().wait()


async def cleanup_waits_in_vain_but_not_long() -> None:
    try:
        await work()
    except BaseException:
        with anyio.move_on_after(5, shield=True):
            await anyio.Event().wait()
        raise


# ── LIVELOCK ──


async def cleanup_spins() -> None:
    try:
        await work()
    except BaseException:
        while True:
            with contextlib.suppress(BaseException):
                await anyio.lowlevel.cancel_shielded_checkpoint()


async def cleanup_turns_round_a_few_times() -> None:
    try:
        await work()
    except BaseException:
        for _ in range(3):
            await anyio.lowlevel.cancel_shielded_checkpoint()
        raise


async def retry_that_eats_cancellation() -> None:
    done = False
    while not done:
        with contextlib.suppress(BaseException):
            await work()
            done = True


# ── ERROR ──


async def cleanup_trips_over_what_was_not_opened() -> None:
    handle: list[int] | None = None
    try:
        await work()
        handle = []
        await work()
    finally:
        handle.clear()


async def cleanup_looks_first() -> None:
    handle: list[int] | None = None
    try:
        await work()
        handle = []
        await work()
    finally:
        if handle is not None:
            handle.clear()


async def sibling_fails_while_unwinding() -> None:
    async def sibling() -> None:
        try:
            await work()
        except BaseException:
            raise ValueError("from the sibling's cleanup") from None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sibling)
        await work()


async def siblings_unwind_quietly() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        tasks.start_soon(work)
        await work()


async def cancellation_comes_out_in_a_group() -> None:
    try:
        await work()
    except asyncio.CancelledError as error:
        raise BaseExceptionGroup("wrapped", [error]) from None


# ── SWALLOWED ──


async def dispatcher_that_eats_everything() -> None:
    with contextlib.suppress(BaseException):
        await work()


async def dispatcher_that_eats_errors_only() -> None:
    with contextlib.suppress(Exception):
        await work()


async def rearms_a_cancel_it_held_back() -> None:
    """Returns normally, but with the cancel standing again: asyncio ends such a task cancelled."""
    try:
        await work()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


# ── ORPHAN ──


async def leaves_an_asyncio_task_behind() -> None:
    try:
        await work()
    except BaseException:
        _ = asyncio.get_running_loop().create_task(asyncio.sleep(50))
        raise


async def ends_its_asyncio_task() -> None:
    try:
        await work()
    except BaseException:
        helper = asyncio.get_running_loop().create_task(asyncio.sleep(50))
        helper.cancel()
        while not helper.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({helper})
        raise


async def leaves_a_trio_system_task_behind() -> None:
    import trio

    try:
        await work()
    except BaseException:
        trio.lowlevel.spawn_system_task(trio.sleep_forever)
        raise


async def leaves_work_of_three_seconds_behind() -> None:
    """Wrong, but over soon; on each backend in its own way."""
    await work()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        trio.lowlevel.spawn_system_task(work)
    else:
        _ = loop.create_task(work())  # noqa: RUF006 - the defect


# ── NOISE ──


async def forgets_to_await() -> None:
    async def forgotten() -> None: ...

    try:
        await work()
    except BaseException:
        forgotten()  # type: ignore[unused-coroutine]
        raise


async def loses_an_exception() -> None:
    try:
        await work()
    except BaseException:
        asyncio.get_running_loop().create_future().set_exception(ValueError("lost"))
        raise


async def fails_in_a_finaliser() -> None:
    class Grumpy:
        def __del__(self) -> None:
            raise ValueError("in __del__")

    try:
        await work()
    except BaseException:
        cycle: list[object] = [Grumpy()]
        cycle.append(cycle)  # only the garbage collector finds it
        raise


async def leaves_a_file_open() -> None:
    try:
        await work()
    except BaseException:
        open(os.devnull)  # noqa: SIM115, ASYNC230
        raise


async def closes_its_file() -> None:
    try:
        await work()
    except BaseException:
        open(os.devnull).close()  # noqa: ASYNC230
        raise


PLANTED = [
    ("HANG", cleanup_waits_in_vain, ALL),
    ("LIVELOCK", cleanup_spins, ALL),
    ("LIVELOCK", retry_that_eats_cancellation, SCOPED),
    ("SWALLOWED", retry_that_eats_cancellation, NATIVE),
    ("SWALLOWED", dispatcher_that_eats_everything, ("asyncio-native",)),
    ("ERROR", cleanup_trips_over_what_was_not_opened, ("trio", "asyncio-scope", "asyncio-native")),
    ("ERROR", sibling_fails_while_unwinding, ALL),
    ("ERROR", cancellation_comes_out_in_a_group, ("asyncio-native",)),
    ("ORPHAN", leaves_an_asyncio_task_behind, ("asyncio-scope", "asyncio-native")),
    ("ORPHAN", leaves_a_trio_system_task_behind, ("trio",)),
    ("NOISE", forgets_to_await, ("trio", "asyncio-scope", "asyncio-native")),
    ("NOISE", loses_an_exception, ("asyncio-scope", "asyncio-native")),
    ("NOISE", fails_in_a_finaliser, ("trio", "asyncio-scope", "asyncio-native")),
    ("NOISE", leaves_a_file_open, ("trio", "asyncio-scope", "asyncio-native")),
]

MENDED = [
    (cleanup_waits_in_vain_but_not_long, ALL),
    (cleanup_turns_round_a_few_times, ALL),
    (dispatcher_that_eats_errors_only, ALL),
    # Level-triggered cancellation comes again at the caller's next checkpoint, so eating it once loses nothing.
    (dispatcher_that_eats_everything, SCOPED),
    (rearms_a_cancel_it_held_back, NATIVE),
    (cleanup_looks_first, ALL),
    (siblings_unwind_quietly, ALL),
    (ends_its_asyncio_task, ON_ASYNCIO),
    (closes_its_file, ALL),
]


@pytest.mark.parametrize(
    ("kind", "scenario", "mode"),
    [(kind, scenario, mode) for kind, scenario, modes in PLANTED for mode in modes],
)
def test_oracle_reports_planted_defect(kind: str, scenario: Scenario, mode: str) -> None:
    report = sweep(scenario, mode)
    assert {violation.kind for violation in report.violations} == {kind}, str(report)
    assert all(violation.k > 0 for violation in report.violations), "the undisturbed run is clean"


@pytest.mark.parametrize(
    ("scenario", "mode"), [(scenario, mode) for scenario, modes in MENDED for mode in modes]
)
def test_oracles_are_silent_on_fixed_twin(scenario: Scenario, mode: str) -> None:
    report = sweep(scenario, mode)
    assert report.ok, str(report)
    assert report.points[mode] >= 3, "and there was something to cancel"


@pytest.mark.parametrize("mode", ALL)
def test_grace_covers_leftover_work(mode: str) -> None:
    strict = cancel_everywhere(lambda: leaves_work_of_three_seconds_behind, modes=(mode,))
    assert [violation.kind for violation in strict.violations] == ["ORPHAN"]
    lenient = cancel_everywhere(
        lambda: leaves_work_of_three_seconds_behind, modes=(mode,), grace=10
    )
    assert lenient.ok, str(lenient)
    assert lenient.points == strict.points == {mode: 3}


# ── THREAD, and scenarios that use real threads ──


class ThreadWorld:
    """Starts a thread when cancelled, and ends it or does not."""

    def __init__(self, *, ends_it: bool) -> None:
        self.ends_it = ends_it
        self.release = threading.Event()

    async def scenario(self) -> None:
        try:
            await work()
        except BaseException:
            thread = threading.Thread(target=self.release.wait, args=(20,), name="stray")
            thread.start()
            if self.ends_it:
                self.release.set()
            raise

    def check(self) -> Iterator[str]:
        self.release.set()
        yield from ()


@pytest.mark.parametrize("mode", ALL[:3])
def test_leftover_thread_is_reported(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cancel_everywhere(lambda: ThreadWorld(ends_it=True), modes=(mode,)).ok
    monkeypatch.setattr("amplifier.testing.cancel_sweep.report._THREAD_GRACE", 0.02)
    report = cancel_everywhere(lambda: ThreadWorld(ends_it=False), modes=(mode,))
    assert {(violation.kind, violation.detail) for violation in report.violations} == {
        ("THREAD", "thread stray is still running")
    }


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_scenarios_may_use_worker_threads(clock: str) -> None:
    done: list[int] = []

    async def scenario() -> None:
        with anyio.fail_after(60):
            for number in range(3):
                await anyio.to_thread.run_sync(done.append, number)

    modes = ON_ASYNCIO if clock == "virtual" else ALL
    report = cancel_everywhere(lambda: scenario, modes=modes, clock=clock)  # type: ignore[arg-type]
    assert report.ok, str(report)
    assert min(report.points.values()) >= 3
    assert done


def test_scenarios_may_run_subprocesses() -> None:
    async def scenario() -> None:
        # asyncio loses a task of its own when a process is cancelled while it starts; that part is shielded here.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                ["sleep", "0.01"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
            )
        async with process:
            await process.wait()

    report = cancel_everywhere(lambda: scenario, modes=SCOPED, clock="real")
    assert report.ok, str(report)
    assert min(report.points.values()) >= 1
    assert report.clock == "real"


def test_real_clock_budget_is_real_seconds() -> None:
    report = cancel_everywhere(
        lambda: cleanup_waits_in_vain, modes=SCOPED, clock="real", budget=0.01
    )
    assert {violation.kind for violation in report.violations} == {"HANG"}


# ── INVARIANT ──


def test_check_result_is_reported_with_place() -> None:
    class Account:
        def __init__(self) -> None:
            self.open = 0

        async def scenario(self) -> None:
            self.open += 1
            await work()
            self.open -= 1

        def check(self) -> list[str]:
            return ["one is open"] if self.open else []

    report = cancel_everywhere(Account, modes=("trio", "asyncio-native"))
    assert [(violation.mode, violation.k) for violation in report.violations] == [
        (mode, k) for mode in ("trio", "asyncio-native") for k in (1, 2, 3)
    ]
    first = report.violations[0]
    assert (first.kind, first.detail) == ("INVARIANT", "one is open")
    assert "test_cancel_sweep_oracles.py" in first.where
    assert first.where.endswith(" work")
    assert [frame.rpartition(" ")[2] for frame in first.stack] == ["Account.scenario", "work"]


def test_check_may_use_assert() -> None:
    def make() -> tuple[Scenario, Callable[[], None]]:
        log: list[str] = []

        async def scenario() -> None:
            await work()
            log.append("done")

        def check() -> None:
            assert log, "the log is empty"

        return scenario, check

    report = cancel_everywhere(make, modes=("asyncio-scope",))
    assert {violation.kind for violation in report.violations} == {"INVARIANT"}
    assert "AssertionError: the log is empty" in report.violations[0].detail


def test_dirty_undisturbed_run_is_not_swept() -> None:
    async def scenario() -> None:
        await work()
        raise ValueError("always")

    report = cancel_everywhere(lambda: scenario)
    assert [(violation.mode, violation.k, violation.kind) for violation in report.violations] == [
        (mode, 0, "ERROR") for mode in MODES
    ]
    assert report.trials == dict.fromkeys(MODES, 1)
    assert all("not swept" in note for note in report.notes)


def test_self_cancelling_scenario_is_error() -> None:
    async def scenario() -> None:
        await anyio.lowlevel.checkpoint()
        raise asyncio.CancelledError("invented")

    report = cancel_everywhere(lambda: scenario, modes=ON_ASYNCIO, only=0)
    assert {violation.kind for violation in report.violations} == {"ERROR"}
    assert len(report.violations) == len(ON_ASYNCIO)


def test_expected_exceptions_are_legitimate_outcomes() -> None:
    class Stopped(Exception):
        pass

    async def scenario() -> None:
        try:
            await work()
        except BaseException as error:
            raise Stopped from error

    assert not cancel_everywhere(lambda: scenario).ok
    report = cancel_everywhere(lambda: scenario, expect=(Stopped,))
    assert report.ok, str(report)


def test_hanging_wait_for_system_task_ends():
    """As a call of an asyncio island does: the wait cannot be cut off, and its end is reported through trio's own queue."""
    trio = pytest.importorskip("trio")

    async def scenario() -> None:
        waiting, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()

        async def beside() -> None:
            try:
                with trio.CancelScope(shield=True):
                    await trio.sleep_forever()
            finally:
                for _ in range(3):  # so that whatever else was cancelled has ended
                    await trio.lowlevel.cancel_shielded_checkpoint()
                token.run_sync_soon(trio.lowlevel.reschedule, waiting)

        trio.lowlevel.spawn_system_task(beside, context=contextvars.copy_context())
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        ended.append("ended")

    ended: list[str] = []
    report = cancel_everywhere(
        lambda: scenario, modes=("trio",), max_points=0, max_steps=300, budget=1000
    )
    assert ([violation.kind for violation in report.violations], ended) == (["HANG"], ["ended"])
