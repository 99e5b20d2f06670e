"""Deadlines: many foreign calls under one scope whose deadline moves, and single calls. Time is virtual in all of these tests."""

from __future__ import annotations

import asyncio
import gc
import types
import weakref
from collections.abc import Awaitable, Generator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel.runtime.deadlines import DeadlinePassed
from amplifier.kernel.runtime.frames import where_suspended
from tests.kernel.backends_alone import loop_turns, on_asyncio
from tests.kernel.runtime.deadline_calls import Calls, SingleCall

pytestmark = pytest.mark.virtual_time


async def answer_after(seconds: float) -> str:
    await anyio.sleep(seconds)
    return f"after {seconds:g}"


async def outcome(series: Calls | SingleCall, call: Awaitable[Any], seconds: float | None) -> str:
    try:
        return str(await series.run(call, seconds, "call"))
    except DeadlinePassed as late:
        return f"cut off: {late}"


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.sampled_from([0.5, 1.5, 2.5, 60.5, 300.5, 1000, None])),
        min_size=1,
        max_size=6,
    )
)
async def test_each_call_has_own_time(calls):
    series = Calls()
    try:
        for duration, seconds in calls:
            began = anyio.current_time()
            got = await outcome(series, answer_after(duration), seconds)
            took = anyio.current_time() - began
            # Moving a deadline costs something, so a call may get one hundredth less than it was promised.
            if got.startswith("cut off"):
                assert seconds is not None
                assert got == f"cut off: no answer within {seconds:g} s"
                assert duration >= seconds * 0.99
                assert seconds * 0.99 - 1e-6 <= took <= seconds + 1e-6
            else:
                assert got == f"after {duration:g}"
                assert took == pytest.approx(duration)
                assert seconds is None or duration <= seconds
    finally:
        series.close()


async def test_limit_is_shared_by_all_calls():
    series = Calls(limit=5)
    began = anyio.current_time()
    assert await outcome(series, answer_after(3), 4) == "after 3"
    assert await outcome(series, answer_after(3), 4) == "cut off: no answer within 2 s"
    assert await outcome(series, answer_after(3), None) == "cut off: no answer within 0 s"
    assert anyio.current_time() - began == pytest.approx(5)
    series.close()


async def test_unnoticed_late_call_has_overrun():
    async def stubborn() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(10)
        return "late"

    series = Calls()
    assert await outcome(series, stubborn(), 3) == "cut off: no answer within 3 s"
    assert await outcome(series, answer_after(2), 3) == "after 2"
    series.close()


async def test_error_from_cancellation_is_overrun():
    async def translating() -> None:
        try:
            await anyio.sleep(10)
        except BaseException as exc:
            raise ValueError("gave up") from exc

    series = Calls()
    assert await outcome(series, translating(), 3) == "cut off: no answer within 3 s"
    series.close()


@on_asyncio
async def test_call_that_answers_with_its_own_cancellation_has_overrun():
    async def translating() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None

    assert await outcome(SingleCall(), translating(), 3) == "cut off: no answer within 3 s"


async def test_single_call_that_returns_late_has_overrun():
    async def stubborn() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(10)
        return "late"

    with pytest.raises(DeadlinePassed) as caught:
        await SingleCall().run(stubborn(), 3, "call")
    assert (caught.value.has_answer, caught.value.answer) == (True, "late")


async def test_overrun_inside_task_group():
    async def grouping() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 10)
            try:
                await anyio.sleep(10)
            finally:
                raise ValueError("beside the cancellation")

    series = Calls()
    assert await outcome(series, grouping(), 3) == "cut off: no answer within 3 s"
    series.close()


async def test_caller_cancellation_propagates():
    """The deadline stays usable."""
    series = Calls()
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await series.run(answer_after(1), 3, "call")
        finally:
            series.close()
    assert scope.cancelled_caught
    assert await outcome(series, answer_after(1), 3) == "after 1"
    series.close()


@pytest.mark.parametrize("callers", [1, 3], ids=["earlier", "at the same moment"])
async def test_caller_deadline_is_not_calls_own(callers):
    with anyio.move_on_after(callers) as scope:
        series = Calls()
        try:
            await outcome(series, answer_after(10), 3)
        finally:
            series.close()
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_closed_series_leaves_no_deadline():
    effective = anyio.current_effective_deadline()
    series = Calls()
    await outcome(series, answer_after(1), 2)
    series.close()
    series.close()
    assert anyio.current_effective_deadline() == effective
    with anyio.move_on_after(20) as scope:
        await anyio.sleep(10)
    assert not scope.cancel_called


# ── asyncio only ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at", [0.0, 3.0])
@on_asyncio
async def test_native_cancel_at_deadline_propagates(at):
    async def calling() -> None:
        series = Calls()
        try:
            await series.run(answer_after(10), 3, "call")
        except DeadlinePassed:
            await asyncio.sleep(0)  # were the cancel lost, this would go on
        finally:
            series.close()

    task = asyncio.get_running_loop().create_task(calling())
    await loop_turns()
    asyncio.get_running_loop().call_at(at, task.cancel)
    await asyncio.wait([task])
    assert (task.cancelled(), task.cancelling()) == (True, 1)


@on_asyncio
async def test_overrun_leaves_no_pending_cancellation():
    series = Calls()
    await outcome(series, answer_after(10), 3)
    series.close()
    task = asyncio.current_task()
    assert task is not None
    assert (task.cancelling(), await answer_after(1)) == (0, "after 1")


# ── all that can be awaited ──────────────────────────────────────────────────────────────────────


class Answer:
    """An awaitable that is no coroutine."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, str]:
        if self._waits:
            yield from anyio.lowlevel.checkpoint().__await__()
        return "answer"


class PlainIterator:
    """What `__await__` may return: it has neither send nor throw."""

    def __await__(self) -> Iterator[Any]:
        return iter(())


class NoSend:
    """An iterator that can be thrown into, but not sent anything."""

    def __await__(self) -> Any:
        return self

    def __next__(self) -> Any:
        raise StopIteration("no send")

    def throw(self, *_: Any) -> Any:
        raise AssertionError("nothing throws here")

    def __iter__(self) -> Any:
        return self


@types.coroutine
def old_fashioned() -> Generator[Any, Any, str]:
    yield from anyio.lowlevel.checkpoint().__await__()
    return "old"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: answer_after(0), "after 0"),
        (lambda: Answer(waits=True), "answer"),
        (lambda: Answer(waits=False), "answer"),
        (old_fashioned, "old"),
        (PlainIterator, None),
        (NoSend, "no send"),
    ],
    ids=[
        "coroutine",
        "awaitable",
        "awaitable-at-once",
        "generator",
        "iterator",
        "iterator-with-throw",
    ],
)
async def test_any_awaitable_can_be_run(make, expected):
    series = Calls()
    assert await series.run(make(), 3, "call") == expected
    series.close()


async def test_call_may_catch_and_continue():
    async def catching() -> str:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep(1000)
        try:
            await answer_after(1)
            raise KeyError("inner")
        except KeyError:
            return await answer_after(1)

    series = Calls()
    assert await series.run(catching(), 10, "call") == "after 1"
    series.close()


async def test_await_location_through_deadline_group():
    series = Calls()
    found: list[str] = []

    async def deep() -> None:
        await anyio.sleep(5)

    async def call() -> None:
        await deep()

    async def look() -> None:
        await anyio.sleep(1)
        found.append(where_suspended(running))

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        running = series.run(call(), 10, "call")
        await running
        series.close()
    assert "in test_await_location_through_deadline_group.<locals>.deep" in found[0]


async def test_failed_call_leaves_no_reference_cycle():
    class Held:
        pass

    async def failing(held: Held) -> None:
        await anyio.lowlevel.checkpoint()
        raise KeyError("mine")

    held = Held()
    gone = weakref.ref(held)
    gc.collect()
    gc.disable()  # the collector would hide it
    try:
        series = Calls()
        with pytest.raises(KeyError):
            await series.run(failing(held), 5, "call")
        series.close()
        del held
        assert gone() is None
    finally:
        gc.enable()
