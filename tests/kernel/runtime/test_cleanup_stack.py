"""The cleanup stack: reverse order, once each, a deadline for each and for all, failures collected. Time is virtual."""

from __future__ import annotations

import asyncio
import functools

import anyio
import anyio.lowlevel
import pytest

from amplifier import ModuleCoordinator
from amplifier.errors import ContainedError, SpuriousCancellation
from amplifier.kernel.runtime.deadlines import TimeBudget
from amplifier.kernel.runtime.tasks import CleanupFailure, CleanupStack

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def stack():
    return CleanupStack()


@pytest.fixture
def log():
    return []


def noting(log, word, seconds=0.0):
    async def cleanup():
        await anyio.sleep(seconds)
        log.append(word)

    return cleanup


def hanging(log, word):
    async def cleanup():
        try:
            await anyio.sleep_forever()
        finally:
            log.append((word, anyio.current_time()))

    return cleanup


def raising(error):
    async def cleanup():
        raise error

    return cleanup


async def unwind(stack, *, each=10.0, total=30.0, owner=None):
    budget = TimeBudget() if total is None else TimeBudget(anyio.current_time() + total)
    failures: list[CleanupFailure] = []
    await stack.unwind(failures, each=each, budget=budget, owner=owner)
    return failures, next((failure.error for failure in failures if not isinstance(failure.error, Exception)), None)


# ── order, and once ──────────────────────────────────────────────────────────────────────────────


async def test_what_came_last_goes_first_whoever_owns_it(stack, log):
    stack.push(noting(log, 1), "a")
    stack.push(lambda: log.append(2), None)
    stack.push(noting(log, 3, seconds=5), "b")
    stack.push(functools.partial(noting(log, 4)), "a")
    assert await unwind(stack) == ([], None)
    assert log == [4, 3, 2, 1]


async def test_each_step_runs_once_however_often_the_stack_is_unwound(stack, log):
    stack.push(noting(log, 1), "a")
    await unwind(stack)
    assert await unwind(stack) == ([], None)
    assert log == [1]


class Resource:
    """Something with a method that closes it, as modules have."""

    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


async def test_cleanup_that_one_module_pushes_twice_runs_once(stack, log):
    function = noting(log, "closed")
    for _ in range(2):
        stack.push(function, "a")
    await unwind(stack)
    assert log == ["closed"]


async def test_bound_method_pushed_twice_is_one_cleanup_though_python_makes_two_objects(stack, log):
    resource, other = Resource(log), Resource(log)
    for _ in range(2):
        stack.push(resource.close, "a")
    stack.push(other.close, "a")
    await unwind(stack)
    assert log == ["closed", "closed"]


async def test_equal_cleanups_of_two_modules_or_of_the_application_all_run(stack, log):
    function = noting(log, "closed")
    for owner in ("a", "b", None, None):
        stack.push(function, owner)
    await unwind(stack)
    assert log == ["closed"] * 4


async def test_cleanup_pushed_by_a_cleanup_runs_next(stack, log):
    stack.push(noting(log, "first"), None)
    stack.push(lambda: stack.push(noting(log, "pushed late"), None), None)
    await unwind(stack)
    assert log == ["pushed late", "first"]


class Name(str):  # noqa: SLOT000 — it has an attribute
    """The id of a module, which counts how often it is looked at."""

    __hash__ = str.__hash__
    looks = 0

    def __eq__(self, other):
        self.looks += 1
        return str.__eq__(self, other)


async def test_each_step_is_looked_at_a_fixed_number_of_times_however_many_there_are(stack, log):
    steps, owner = 500, Name("a")
    for number in range(steps):
        stack.push(functools.partial(log.append, number), "a")
    assert await unwind(stack, owner=owner) == ([], None)
    assert log == list(reversed(range(steps)))
    assert owner.looks <= 2 * steps  # once to count them, once to run each


async def test_step_that_became_unnecessary_is_forgotten(stack, log):
    entry = stack.push(noting(log, 1), "a")
    stack.discard(entry)
    stack.discard(entry)
    await unwind(stack)
    assert log == []


async def test_one_modules_steps_run_alone_and_in_reverse(stack, log):
    for number, owner in enumerate(["a", "b", "a", None, "b"]):
        stack.push(noting(log, (owner, number)), owner)
    assert await unwind(stack, owner="b") == ([], None)
    assert log == [("b", 4), ("b", 1)]
    await unwind(stack)
    assert log[2:] == [(None, 3), ("a", 2), ("a", 0)]


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────


async def test_step_that_comes_back_late_is_reported_as_late(stack):
    async def refuse():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(12)

    stack.push(refuse, "a")
    [failure], _ = await unwind(stack)
    assert failure.overran


async def test_when_time_runs_short_every_remaining_step_gets_a_part_and_the_whole_ends_in_time(stack, log):
    for number in range(5):
        stack.push(hanging(log, number), None)
    began = anyio.current_time()
    failures, _ = await unwind(stack, each=10, total=25)
    assert [(word, at - began) for word, at in log] == [
        (4, pytest.approx(10)),
        (3, pytest.approx(20)),
        (2, pytest.approx(23)),
        (1, pytest.approx(24)),
        (0, pytest.approx(25)),
    ]
    assert len(failures) == 5


@pytest.mark.parametrize(
    ("each", "total", "ends"), [(None, 8, [7.9, 8]), (7, None, [7, 14]), (3, 100, [3, 6])], ids=repr
)
async def test_either_deadline_may_be_left_out(stack, log, each, total, ends):
    stack.push(hanging(log, 1), None)
    stack.push(hanging(log, 2), None)
    began = anyio.current_time()
    await unwind(stack, each=each, total=total)
    assert [at - began for _, at in log] == pytest.approx(ends)


async def test_without_any_deadline_a_step_may_take_as_long_as_it_likes(stack, log):
    stack.push(noting(log, "done", seconds=100_000), None)
    assert await unwind(stack, each=None, total=None) == ([], None)
    assert log == ["done"]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_cancellation_made_up_by_a_step_is_its_failure(stack, log, is_async):
    def invent():
        raise asyncio.CancelledError

    stack.push(noting(log, "rest"), "a")
    stack.push(raising(asyncio.CancelledError()) if is_async else invent, "b")
    [failure], fatal = await unwind(stack)
    assert fatal is None
    assert isinstance(failure.error, SpuriousCancellation)
    assert log == ["rest"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_the_first_interrupt_is_handed_back_after_all_steps_and_an_exit_is_a_failure(stack, log, is_async):
    def step(error):
        def fail():
            raise error

        return raising(error) if is_async else fail

    interrupt, leave = KeyboardInterrupt(), SystemExit(3)
    stack.push(noting(log, "rest"), None)
    stack.push(step(leave), "c")
    stack.push(step(ValueError()), "b")
    stack.push(step(interrupt), None)
    failures, fatal = await unwind(stack)
    assert fatal is interrupt
    assert [(failure.module, type(failure.error)) for failure in failures] == [
        (None, KeyboardInterrupt),  # it may have been cut off in the middle, so it is named
        ("b", ValueError),
        ("c", ContainedError),
    ]
    assert failures[2].error.__cause__ is leave
    assert log == ["rest"]


# ── through the coordinator ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [None, 5, "cleanup", {}])
async def test_what_cannot_be_called_is_no_cleanup(wrong):
    coordinator = ModuleCoordinator()
    coordinator.register_cleanup(wrong)
    coordinator.view_for("a").register_cleanup(wrong)
    assert coordinator.cleanups.entries == []
    await coordinator.cleanup()


async def test_partial_and_callable_objects_are_cleanups_too(log):
    coordinator = ModuleCoordinator()
    coordinator.register_cleanup(functools.partial(log.append, "partial"))
    coordinator.register_cleanup(log.copy)
    await coordinator.cleanup()
    assert log == ["partial"]
