"""A session at its borders: other tasks, other loops, the time of closing, a child that is still opening, being dropped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ExecutionCancelled, SessionStateError
from tests._support.small_agent import agent, counted_calls
from tests.kernel.backends_alone import run_on

pytestmark = pytest.mark.virtual_time

# ── one clock for closing ────────────────────────────────────────────────────────────────────────


async def hang(*_: Any) -> None:
    await anyio.sleep_forever()


def fail(*_: Any) -> None:
    raise ValueError("broke")


OBSERVERS = [
    "session:end",
    "cleanup:failed",
    "hook:failed",
    "hook:timeout",
    "module:crashed",
    "cancel:requested",
]


@pytest.mark.parametrize("cleanups", [0, 3])
@pytest.mark.parametrize("events", [*([event] for event in OBSERVERS), OBSERVERS], ids=",".join)
async def test_closing_is_bounded_despite_hanging_observers(events, cleanups):
    session = agent(session={"deadlines": {"teardown": 2, "cleanup": 1.5}})
    async with session:
        coordinator = session.coordinator
        for event in events:
            coordinator.hooks.register(event, hang, name=f"observer of {event}")
        coordinator.hooks.register("session:end", fail)
        coordinator.cancellation.on_cancel(hang)
        for _ in range(cleanups):
            coordinator.register_cleanup(hang)
        coordinator.register_cleanup(fail)
        coordinator.cancellation.request_graceful()
        await anyio.lowlevel.checkpoint()
        began = anyio.current_time()
    assert anyio.current_time() - began <= 2.001
    assert len(session.cleanup_failures) == cleanups + 1
    assert session.statistics().state == "closed"


async def test_events_after_closing_have_own_time():
    session = agent(session={"deadlines": {"teardown": 2}})
    async with session:
        pass
    heard: list[str] = []

    async def listen(event: str, data: Any) -> None:
        await anyio.sleep(10)
        heard.append(event)

    session.coordinator.hooks.register("custom:event", listen)
    await session.coordinator.hooks.emit("custom:event", {})
    assert heard == ["custom:event"]


# ── another task ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [None, ValueError("of the body")], ids=["left", "raised"])
async def test_session_left_in_other_task_is_reported(error):
    closed: list[str] = []
    session = agent()
    entered, release = anyio.Event(), anyio.Event()
    caught: list[BaseException] = []

    async def open_it() -> None:
        await session.__aenter__()
        session.coordinator.register_cleanup(lambda: closed.append("cleaned up"))
        entered.set()
        await release.wait()

    async def leave_it() -> None:
        try:
            await session.__aexit__(None if error is None else type(error), error, None)
        except BaseException as exc:
            caught.append(exc)

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(open_it)
            await entered.wait()
            await leave_it()
            release.set()

    # The task that entered ends with an open task group, which AnyIO and trio report in their own way.
    with contextlib.suppress(Exception):
        await both()
    [problem] = caught
    assert isinstance(problem, SessionStateError)
    assert "was opened in task" in str(problem)
    assert "must be left in the task that entered it" in str(problem)
    assert problem.__cause__ is error
    assert closed == ["cleaned up"]
    assert session.statistics().state == "closed"


def test_fixture_in_two_tasks_gets_worded_error():
    """As pytest-asyncio runs async generator fixtures: each step in a task of its own."""

    async def fixture() -> AsyncIterator[AmplifierSession]:
        async with agent() as session:
            yield session

    with asyncio.Runner() as runner:
        generator = fixture()

        async def step() -> AmplifierSession:
            return await anext(generator)

        session = runner.run(step())
        assert session.initialized
        with pytest.raises(SessionStateError, match="was opened in task"):
            runner.run(step())
        assert session.statistics().state == "closed"


# ── another loop ─────────────────────────────────────────────────────────────────────────────────


async def test_session_is_not_closed_from_running_loop():
    async with agent() as session:

        def elsewhere() -> None:
            with pytest.raises(SessionStateError, match="was opened on another event loop"):
                run_on("asyncio", session.cleanup)

        await anyio.to_thread.run_sync(elsewhere)
        assert session.initialized
        assert await session.execute("still") == "still"


@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_session_of_ended_loop_closes_elsewhere(first):
    closed: list[str] = []
    session = agent()
    run_on(first, session.initialize)
    session.coordinator.register_cleanup(lambda: closed.append("cleaned up"))
    run_on("asyncio", session.cleanup)
    assert closed == ["cleaned up"]


# ── a child that is still opening ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("structured", [False, True], ids=["plain", "structured"])
async def test_stop_reaches_opening_child(structured):
    log: list[str] = []

    async def plain(coordinator: Any, config: Any) -> None:
        if coordinator.parent_id is not None:
            log.append("mounting")
            await anyio.sleep_forever()

    @asynccontextmanager
    async def keeping(coordinator: Any, config: Any) -> AsyncIterator[None]:
        if coordinator.parent_id is not None:
            log.append("mounting")
            await anyio.sleep_forever()
        yield

    async with agent(tools={"tool-slow": keeping if structured else plain}) as parent:
        child = parent.fork()

        async def stop() -> None:
            await anyio.sleep(1)
            parent.coordinator.cancellation.request_immediate(reason="enough")

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            with pytest.raises(
                ExecutionCancelled, match="was stopped while it was being opened"
            ) as caught:
                await child.__aenter__()
        assert caught.value.reason == "enough"
        assert log == ["mounting"]
        assert child.statistics().state == "closed"
        assert child.status.status == "cancelled"


@pytest.mark.parametrize("steps", range(4))
async def test_early_stop_ends_opening(steps):
    has_begun = False

    async def hang(coordinator: Any, config: Any) -> None:
        await anyio.sleep_forever()

    async def open_session() -> None:
        nonlocal has_begun
        has_begun = True
        with pytest.raises(ExecutionCancelled, match="was stopped while it was being opened"):
            await session.__aenter__()

    session = agent(tools={"tool-slow": hang})
    async with anyio.create_task_group() as group:
        group.start_soon(open_session)
        while not has_begun:
            await anyio.lowlevel.checkpoint()
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        session.coordinator.cancellation.request_immediate(reason="enough")
    assert session.status.status == "cancelled"


# ── quick turns, many tasks, being dropped ───────────────────────────────────────────────────────


async def test_quick_turns_let_deadline_pass():
    async with agent() as session:
        turns = 0
        with anyio.move_on_after(5) as scope:
            while turns < 100_000:
                await session.execute("quick")
                turns += 1
                if turns == 3:
                    scope.cancel()
        assert turns == 3


async def test_background_work_cost_is_constant():
    async def calls_for(count: int) -> int:
        async with agent() as session:
            with counted_calls() as calls:
                for _ in range(count):
                    session.coordinator.start_soon(anyio.lowlevel.checkpoint)
                while session.statistics().cleanups:
                    await anyio.lowlevel.checkpoint()
        return calls.count

    few, many = await calls_for(100), await calls_for(800)
    assert many < few * 8 * 1.5


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_dropped_open_session_gives_resource_warning():
    async def forget() -> None:
        session = agent(session_id="forgotten")
        await session.initialize()

    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_on("asyncio", forget)
        gc.collect()
    [warning] = [
        each
        for each in caught
        if each.category is ResourceWarning and "forgotten" in str(each.message)
    ]
    assert "was dropped while it was open" in str(warning.message)
