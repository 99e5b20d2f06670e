"""The sweep itself: what it counts, that it repeats, how it reports, what it refuses; and one cancellation at one suspension."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from amplifier.errors import MissingExtraError
from amplifier.testing import MODES, SweepReport, Violation, cancel_at, cancel_everywhere

ON_ASYNCIO = ("asyncio-scope", "asyncio-native", "asyncio-native-twice")

Scenario = Callable[[], Awaitable[object]]


async def three_steps() -> None:
    for _ in range(3):
        await anyio.lowlevel.checkpoint()


async def leaves_value_error() -> None:
    try:
        await three_steps()
    except BaseException as error:
        raise ValueError(f"boom {id(error):#x}") from error


# ── counting ──


@pytest.mark.parametrize("mode", MODES)
def test_every_yield_is_one_point(mode: str) -> None:
    async def parent() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(three_steps)
            await tasks_are_running()

    async def tasks_are_running() -> None:
        await anyio.sleep(1)

    async def no_yield() -> None:
        return

    async def childless() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(no_yield)
            await anyio.sleep(1)

    crowd = cancel_everywhere(lambda: parent, modes=(mode,), only=None)
    alone = cancel_everywhere(lambda: childless, modes=(mode,))
    assert crowd.points[mode] - alone.points[mode] == 4 * 3
    assert crowd.ok, str(crowd)


@pytest.mark.parametrize("mode", MODES)
def test_each_point_is_hit_once_in_order(mode: str) -> None:
    reached: list[int] = []

    def make() -> Scenario:
        async def scenario() -> None:
            step = 0
            try:
                for step in range(1, 6):  # noqa: B007
                    await anyio.lowlevel.checkpoint()
                step = 0
            finally:
                reached.append(step)
                await anyio.lowlevel.cancel_shielded_checkpoint()

        return scenario

    report = cancel_everywhere(make, modes=(mode,), second_after=(1,))
    undisturbed, *cancelled = reached
    assert undisturbed == 0
    assert [step for step in cancelled if step] == [1, 2, 3, 4, 5]
    assert report.points[mode] == 6, "five steps and the shielded one"


def test_scenario_without_suspensions_is_noted() -> None:
    async def scenario() -> None:
        return

    report = cancel_everywhere(lambda: scenario, modes=("trio",))
    assert report.points == {"trio": 0}
    assert "nothing to cancel" in report.notes[0]


def test_suspension_place_is_innermost_user_line() -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        await opening()
        yield

    async def opening() -> None:
        await anyio.sleep(1)

    async def numbers() -> AsyncIterator[int]:
        await anyio.sleep(1)
        yield 1

    async def scenario() -> None:
        async with resource():
            async for _ in numbers():
                pass

    report = cancel_everywhere(lambda: scenario)
    for mode in MODES:
        functions = [spot.rpartition(" ")[2] for spot in report.traces[mode]]
        assert functions == ["opening", "numbers"]


# ── two cancels ──


def test_second_cancel_comes_after_given_suspensions() -> None:
    seen: list[list[int]] = []

    def make() -> Scenario:
        hits: list[int] = []
        seen.append(hits)

        async def scenario() -> None:
            for step in range(8):
                try:
                    await anyio.lowlevel.checkpoint()
                except asyncio.CancelledError:
                    hits.append(step)

        return scenario

    report = cancel_everywhere(
        make, modes=("asyncio-native-twice",), only=2, second_after=(3, 1, 20)
    )
    assert seen == [[1, 2], [1, 4], [1]]
    assert sorted((violation.k, violation.second) for violation in report.violations) == [
        (2, 1),
        (2, 3),
    ]
    assert "second_after=(1,)" in str(report)


# ── repeating ──


class Siblings:
    """Eight tasks, AnyIO's or asyncio's own: who hears of a cancellation first is up to a set of scopes or of tasks."""

    def __init__(self, logs: list[tuple[str, ...]], *, bare: bool) -> None:
        self.logs = logs
        self.bare = bare
        self.log: list[str] = []
        self.fillers: list[object] = []

    async def scenario(self) -> None:
        if self.bare:
            async with asyncio.TaskGroup() as bare_tasks:
                for number in range(8):
                    self.stir_memory()
                    bare_tasks.create_task(self.sibling(f"task {number}"))
            return
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                self.stir_memory()
                tasks.start_soon(self.sibling, f"task {number}")

    def stir_memory(self) -> None:
        """Move addresses about, so that only a seeded order can repeat."""
        chance = random.SystemRandom()
        self.fillers += [(None,) * chance.randrange(60) for _ in range(chance.randrange(100))]

    async def sibling(self, name: str) -> None:
        try:
            await anyio.sleep(30)
        except BaseException:
            self.log.append(name)
            raise

    def check(self) -> Iterator[str]:
        self.logs.append(tuple(self.log))
        yield from ()


def order_of_unwinding(mode: str, seed: int, *, bare: bool) -> tuple[tuple[str, ...], ...]:
    logs: list[tuple[str, ...]] = []
    assert cancel_everywhere(lambda: Siblings(logs, bare=bare), modes=(mode,), seed=seed).ok
    return tuple(logs)


@pytest.mark.parametrize(
    ("mode", "bare"), [*((mode, False) for mode in MODES), *((mode, True) for mode in ON_ASYNCIO)]
)
def test_sibling_order_follows_seed(mode: str, bare: bool) -> None:
    orders = [order_of_unwinding(mode, seed, bare=bare) for seed in (0, 1, 2, 2, 1, 0)]
    assert orders[:3] == orders[:2:-1]
    assert len(set(orders)) > 1


@pytest.mark.parametrize("seed", range(8))
def test_scope_place_ignores_construction(seed: int) -> None:
    def order(make_scope: Callable[[], anyio.CancelScope]) -> list[tuple[str, ...]]:
        logs: list[tuple[str, ...]] = []

        class MakesAScopeFirst(Siblings):
            async def scenario(self) -> None:
                with make_scope():
                    await super().scenario()

        assert cancel_everywhere(
            lambda: MakesAScopeFirst(logs, bare=False), modes=("asyncio-scope",), seed=seed
        ).ok
        return logs

    async def class_of_the_backend() -> type[anyio.CancelScope]:
        return type(anyio.CancelScope())

    # A scope made by AnyIO's own class is initialised twice, one made by the backend's class once.
    assert order(anyio.CancelScope) == order(anyio.run(class_of_the_backend))


def test_random_module_is_seeded_and_restored() -> None:
    drawn: list[float] = []

    async def scenario() -> None:
        drawn.append(random.random())
        await three_steps()

    random.seed(1234)
    expected = random.Random(1234).random()
    cancel_everywhere(lambda: scenario, seed=7)
    assert set(drawn) == {random.Random(7).random()}
    assert random.random() == expected


@pytest.mark.slow
def test_other_process_reports_same() -> None:
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1])\n"
        "from test_cancel_sweep import MODES, order_of_unwinding\n"
        "print(json.dumps([order_of_unwinding(mode, 3, bare=False) for mode in MODES]))\n"
    )
    here = str(__file__).rpartition("/")[0]
    command = [sys.executable, "-c", program, here]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        for _ in range(2)
    )
    assert (first.stderr, second.stderr) == ("", "")
    assert first.stdout == second.stdout
    assert len(json.loads(first.stdout)) == len(MODES)


def test_non_deterministic_scenario_is_noted() -> None:
    turns = itertools.chain([3], itertools.repeat(4))

    def make() -> Scenario:
        steps = next(turns)

        async def scenario() -> None:
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()

        return scenario

    report = cancel_everywhere(make, modes=("trio",))
    assert report.ok
    assert "not deterministic" in report.notes[0]


@pytest.mark.parametrize("mode", MODES[:3])
def test_only_repeats_named_trial(mode: str) -> None:
    runs: list[int] = []

    def make() -> Scenario:
        runs.append(1)
        return leaves_value_error

    whole = cancel_everywhere(make, modes=(mode,))
    runs.clear()
    for violation in whole.violations:
        again = cancel_everywhere(make, modes=(violation.mode,), only=violation.k)
        assert again.violations == [violation]
        assert again.trials == {mode: 1}
    assert len(runs) == len(whole.violations) == 3


def test_only_repeats_trial_with_two_cancels() -> None:
    async def scenario() -> None:
        try:
            await three_steps()
        finally:
            await three_steps()
            raise ValueError("never when cancelled twice")

    async def mended() -> None:
        try:
            await three_steps()
        finally:
            try:
                await three_steps()
            except BaseException as error:
                raise KeyError("when cancelled twice") from error

    assert not cancel_everywhere(lambda: scenario, modes=("asyncio-native",)).ok
    whole = cancel_everywhere(lambda: mended, modes=("asyncio-native-twice",))
    assert whole.violations
    for violation in whole.violations:
        assert violation.second is not None
        again = cancel_everywhere(
            lambda: mended,
            modes=(violation.mode,),
            only=violation.k,
            second_after=(violation.second,),
        )
        assert again.violations == [violation]


def test_max_points_draws_by_seed() -> None:
    async def long() -> None:
        for _ in range(50):
            await anyio.lowlevel.checkpoint()

    report = cancel_everywhere(lambda: long, modes=("asyncio-scope",), max_points=5)
    assert report.trials == {"asyncio-scope": 6}
    assert report.points == {"asyncio-scope": 50}
    assert report.notes == ["asyncio-scope: only 5 of 50 points were tried (max_points)"]


# ── reporting ──


def test_report_text_has_place_and_reproduction() -> None:
    report = cancel_everywhere(lambda: leaves_value_error, modes=("trio", "asyncio-native"), seed=3)
    lines = str(report).splitlines()
    assert lines[0] == "cancellation sweep: 6 violations in 10 trials (seed 3)"
    assert lines[1] == "  trio: 3 suspension points, 5 trials, 3 violations"
    assert lines[2].startswith(
        "    ERROR x3: ValueError: boom 0x… (raised at testing/test_cancel_sweep.py:"
    )
    assert lines[2].endswith(" leaves_value_error)")
    assert lines[3].startswith("      k=1 at testing/test_cancel_sweep.py:")
    assert lines[3].endswith(" three_steps")
    assert "leaves_value_error > " in lines[6]
    assert lines[7] == '      reproduce: cancel_everywhere(make, modes=("trio",), seed=3, only=1)'
    assert "  asyncio-native: 3 suspension points, 5 trials, 3 violations" in lines


def test_violation_reads_as_one_line() -> None:
    facts: dict[str, Any] = {"kind": "HANG", "detail": "not finished", "where": "a.py:3 f"}
    assert (
        str(Violation(mode="trio", k=2, second=None, **facts))
        == "HANG [trio] k=2 at a.py:3 f: not finished"
    )
    twice = Violation(mode="asyncio-native-twice", k=2, second=3, **facts)
    assert (
        str(twice) == "HANG [asyncio-native-twice] k=2 and again 3 later at a.py:3 f: not finished"
    )
    assert str(Violation(mode="trio", k=0, second=None, **facts)) == (
        "HANG [trio] without any cancellation: not finished"
    )
    assert SweepReport(seed=0).ok


# ── behaving in its process ──


def test_process_state_is_restored() -> None:
    def state() -> tuple[object, ...]:
        return (
            sys.unraisablehook,
            threading.excepthook,
            list(warnings.filters),
            gc.isenabled(),
            anyio_scope_class().__hash__,
            anyio_scope_class().__init__,
        )

    def anyio_scope_class() -> type[Any]:
        async def ask() -> type[Any]:
            return type(anyio.CancelScope())

        return anyio.run(ask)

    before = state()
    cancel_everywhere(lambda: leaves_value_error)
    assert state() == before
    assert gc.get_freeze_count() == 0


def test_call_from_async_code_in_thread() -> None:
    async def outside() -> bool:
        report = await anyio.to_thread.run_sync(lambda: cancel_everywhere(lambda: three_steps))
        return report.ok

    assert anyio.run(outside)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_call_inside_loop_is_refused(backend: str) -> None:
    async def inside() -> None:
        cancel_everywhere(lambda: three_steps)

    with pytest.raises(RuntimeError, match="call it from synchronous code, or with anyio"):
        anyio.run(inside, backend=backend)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"modes": ("trio", "curio")}, r"modes: found \['curio'\]"),
        ({"modes": "trio"}, "modes: found 'trio', expected a sequence"),
        ({"modes": ()}, "modes: found"),
        ({"second_after": ()}, "second_after: found"),
        ({"second_after": (0,)}, "second_after: found"),
        ({"budget": 0}, "budget: found 0"),
        ({"only": -1}, "only: found -1"),
        ({"clock": "wall"}, "clock: found 'wall'"),
    ],
)
def test_senseless_arguments_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cancel_everywhere(lambda: three_steps, **arguments)


def test_trio_mode_without_trio_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trio", "trio.testing", "amplifier.testing.cancel_sweep.trio_trial"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError) as caught:
        cancel_everywhere(lambda: three_steps, modes=("trio",))
    assert caught.value.extra == "trio"
    assert cancel_everywhere(lambda: three_steps, modes=ON_ASYNCIO).ok


def test_keyboard_interrupt_ends_sweep() -> None:
    async def scenario() -> None:
        await three_steps()
        raise KeyboardInterrupt

    for mode in MODES:
        with pytest.raises(KeyboardInterrupt):
            cancel_everywhere(lambda: scenario, modes=(mode,))


# ── cancel_at ──


@pytest.mark.virtual_time
async def test_cancel_at_tries_each_suspension() -> None:
    async def call(log: list[int]) -> str:
        for step in range(3):
            log.append(step)
            await anyio.sleep(1)
        return "done"

    for k in (1, 2, 3):
        log: list[int] = []
        result = await cancel_at(k, call, log)
        assert (result.fired, result.returned, log) == (True, False, list(range(k)))
        assert result.where.endswith(" call")
    result = await cancel_at(4, call, [])
    assert (result.fired, result.returned, result.value, result.where) == (False, True, "done", "")


async def test_cancel_at_lets_other_exceptions_through() -> None:
    with pytest.raises(ValueError, match="boom"):
        await cancel_at(2, leaves_value_error)
    with pytest.raises(ValueError, match="k: found 0"):
        await cancel_at(0, leaves_value_error)


@pytest.mark.virtual_time
async def test_cancel_at_reports_shielded_completion() -> None:
    async def shielded() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1)
        return "kept"

    result = await cancel_at(1, shielded)
    assert (result.fired, result.returned, result.value) == (True, True, "kept")


async def deaf() -> str:
    try:
        await anyio.sleep(1)
    except BaseException:
        return "done all the same"
    return "done"


def fail() -> NoReturn:
    raise FileNotFoundError("no such thing")


async def thorough() -> str:
    """Waits for a thread, which cannot be cancelled, and answers with its failure."""
    try:
        await anyio.to_thread.run_sync(fail)
    except FileNotFoundError:
        return "not found"
    return "found"


async def test_call_ignoring_cancellation_is_seen():
    result = await cancel_at(1, deaf)
    assert result.returned
    assert result.swallowed


async def test_awaited_failure_is_not_cancellation():
    # asyncio throws the failure of a future into the task, much as it throws a cancellation.
    suspensions = (await cancel_at(99, thorough)).suspensions
    for k in range(1, suspensions + 1):
        assert not (await cancel_at(k, thorough)).swallowed


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="asyncio starts tasks at once from Python 3.12 on"
)
@pytest.mark.parametrize("mode", ["asyncio-native", "asyncio-all"])
def test_first_await_of_eager_scenario(mode: str) -> None:
    """A task that starts at once reaches its first await before it is known to who made it."""
    hit: list[str] = []

    async def scenario() -> None:
        try:
            await anyio.sleep(1)
        except asyncio.CancelledError:
            hit.append(mode)
            raise

    report = cancel_everywhere(lambda: scenario, modes=(mode,), only=1, eager_tasks=True)
    assert report.ok, str(report)
    assert hit == [mode]
