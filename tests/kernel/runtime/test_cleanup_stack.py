"""The cleanup stack: reverse order, once each, a deadline for each and for all, failures collected. Time is virtual."""

from __future__ import annotations

import functools

import anyio
import anyio.lowlevel
import pytest

from amplifier import ModuleCoordinator
from amplifier.kernel.runtime.cleanup import CleanupFailure, CleanupStack
from amplifier.kernel.runtime.deadlines import TimeBudget

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def stack():
    return CleanupStack()


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


async def unwind(stack, *, seconds=10.0, total=30.0, owner=None):
    budget = TimeBudget() if total is None else TimeBudget(anyio.current_time() + total)
    failures: list[CleanupFailure] = []
    await stack.unwind(failures, seconds=seconds, budget=budget, owner=owner)
    return failures, next(
        (failure.error for failure in failures if not isinstance(failure.error, Exception)), None
    )


# ── order, and once ──────────────────────────────────────────────────────────────────────────────


class Resource:
    """Something with a method that closes it, as modules have."""

    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


async def test_repeated_cleanup_runs_once_per_owner(stack, log):
    function, resource, other = noting(log, "function"), Resource(log), Resource(log)
    for cleanup in (
        function,
        function,
        resource.close,
        resource.close,
        other.close,
    ):  # Python makes two bound methods
        stack.push(cleanup, "a")
    for owner in ("b", None, None):
        stack.push(function, owner)
    await unwind(stack)
    assert log == ["function"] * 3 + ["closed"] * 2 + ["function"]


async def test_pushed_cleanup_runs_next(stack, log):
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


async def test_step_inspection_is_constant(stack, log):
    steps, owner = 500, Name("a")
    for number in range(steps):
        stack.push(functools.partial(log.append, number), "a")
    assert await unwind(stack, owner=owner) == ([], None)
    assert log == list(reversed(range(steps)))
    assert owner.looks <= 2 * steps  # once to count them, once to run each


async def test_unnecessary_step_is_forgotten(stack, log):
    entry = stack.push(noting(log, 1), "a")
    stack.discard(entry)
    stack.discard(entry)
    await unwind(stack)
    assert log == []


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────


async def test_late_step_is_reported(stack):
    async def refuse():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(12)

    stack.push(refuse, "a")
    [failure], _ = await unwind(stack)
    assert failure.overran


async def test_remaining_steps_share_short_time(stack, log):
    for number in range(5):
        stack.push(hanging(log, number), None)
    began = anyio.current_time()
    failures, _ = await unwind(stack, seconds=10, total=25)
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
async def test_either_deadline_may_be_omitted(stack, log, each, total, ends):
    stack.push(hanging(log, 1), None)
    stack.push(hanging(log, 2), None)
    began = anyio.current_time()
    await unwind(stack, seconds=each, total=total)
    assert [at - began for _, at in log] == pytest.approx(ends)


# ── through the coordinator ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [None, 5, "cleanup", {}])
async def test_uncallable_cleanup_is_refused(wrong):
    coordinator = ModuleCoordinator()
    coordinator.register_cleanup(wrong)
    coordinator.view_for("a").register_cleanup(wrong)
    assert coordinator.cleanups.entries == []
    await coordinator.cleanup()


async def test_steps_adding_steps_are_bounded(stack):
    ran: list[float] = []
    started: list[float] = []

    async def add_another():
        started.append(anyio.current_time())
        # Without a bound of the kernel's own, this one ends the test.
        if len(started) < 100:
            stack.push(add_another, "tool-a")
        await anyio.sleep(4)
        ran.append(anyio.current_time())

    stack.push(add_another, "tool-a")
    began = anyio.current_time()
    with anyio.fail_after(100):
        failures, _ = await unwind(stack, total=30.0)
    assert ran[-1] - began <= 30
    assert len(started) < 20
    assert failures
