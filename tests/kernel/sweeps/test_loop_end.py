"""The end of an asyncio loop at every suspension: every task in the loop's list is cancelled at once, once or twice.

``asyncio.run()`` does that when it is left, and so does a server at its shutdown and the second Ctrl-C. The same worlds are also
run on uvloop and with tasks that start at once, and stopped in two different ways at the same time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import uvloop

from amplifier import AmplifierSession
from amplifier.errors import ExecutionCancelled
from amplifier.testing import LOOP_END_MODES
from amplifier.testing.virtual_time import VirtualTimeLoop
from tests._support.world_modules import (
    a_moment,
    at_work,
    hooks_on_everything,
    hosted,
    loop,
    seed,
    tool,
)
from tests._support.worlds import World, sweep

uvloop.new_event_loop().close()  # the first one makes a pipe that stays in the process for all of them

STOPS = ("asyncio-scope", "asyncio-native", "asyncio-native-twice")
ON_ASYNCIO = (*STOPS, *LOOP_END_MODES)


async def parallel_tools(world: World) -> None:
    session = at_work(world, "a", "b")
    async with world.opened(session):
        await world.execute(session)


async def structured_modules(world: World) -> None:
    """A tool that uses a structured module while it works and unwinds: the module must outlive it."""
    users: list[str] = []

    async def use() -> None:
        users.append("using")
        try:
            await a_moment()
        finally:
            with anyio.CancelScope(shield=True):
                await a_moment()
            users.remove("using")

    async def leaving() -> None:
        assert users == [], "a structured module was closed while a tool still used it"

    session = world.agent(
        loop=loop(world, ["a"]),
        tools={
            "tool-hosted": hosted(world, "hosted", leaving=leaving),
            "tool-a": tool(world, "a", use),
        },
    )
    try:
        async with world.opened(session):
            await world.execute(session)
    finally:
        assert_only_interrupted(session)


async def background_work(world: World) -> None:
    async def pulse() -> None:
        world.ledger.open("pulse")
        try:
            await anyio.sleep_forever()
        finally:
            world.ledger.close("pulse")

    async def start(coordinator: Any) -> None:
        coordinator.start_soon(pulse)

    session = world.agent(tools={"tool-pulse": seed(world, "tool-pulse", after=start)})
    async with world.opened(session):
        await world.execute(session)


async def slow_cleanups(world: World) -> None:
    session = world.agent(
        tools={
            "tool-a": seed(world, "tool-a", closing=a_moment),
            "tool-b": hosted(world, "b", leaving=a_moment),
            "tool-c": seed(world, "tool-c", closing=a_moment),
        },
        hooks={"hooks-all": hooks_on_everything(world)},
    )
    try:
        async with world.opened(session):
            await a_moment()
    finally:
        assert_only_interrupted(session)


async def by_hand(world: World) -> None:
    session = at_work(world, "a", attentive=False)
    try:
        await session.initialize()
        world.has_opened(session)
        await world.execute(session)
    finally:
        await session.cleanup()


async def a_child(world: World) -> None:
    parent = world.agent()
    async with world.opened(parent):
        child = world.adopt(parent.fork())
        async with world.opened(child):
            await world.execute(child)


def assert_only_interrupted(session: AmplifierSession) -> None:
    """Check that no cleanup failed, except the one that the end of the loop has interrupted."""
    failures = [str(failure) for failure in session.cleanup_failures]
    assert [
        failure
        for failure in failures
        if "interrupted, because every task was cancelled" not in failure
    ] == []


# Not structured_modules: the end of the loop cancels a structured module beside its user.
WORLDS = [parallel_tools, background_work, slow_cleanups, by_hand, a_child]


@pytest.mark.parametrize("scenario", WORLDS, ids=lambda scenario: scenario.__name__)
def test_loop_end_runs_every_cleanup(
    scenario: Callable[[World], Awaitable[None]],
) -> None:
    sweep(scenario, points=8, modes=LOOP_END_MODES)


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="asyncio starts tasks at once from Python 3.12 on"
)
@pytest.mark.parametrize(
    "scenario", [parallel_tools, structured_modules], ids=lambda scenario: scenario.__name__
)
def test_eager_tasks_change_nothing(
    scenario: Callable[[World], Awaitable[None]],
) -> None:
    modes = STOPS if scenario is structured_modules else ON_ASYNCIO
    sweep(scenario, points=8, modes=modes, eager_tasks=True)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [structured_modules], ids=lambda scenario: scenario.__name__)
def test_uvloop_changes_nothing(
    scenario: Callable[[World], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its clock is the real one: on a busy machine a sleep would end in the same turn of the loop in which it is cancelled.
    monkeypatch.setattr("tests._support.world_modules.MOMENT", 0)
    sweep(
        scenario,
        points=8,
        modes=STOPS,
        clock="real",
        loop_factory=uvloop.new_event_loop,
        second_after=(1, 3),
    )


# ── two stops at once ────────────────────────────────────────────────────────────────────────────


def _stopped_world(world: World, on_stop: Callable[[], object] | None = None) -> AmplifierSession:
    """A session one of whose tools stops its own turn, then takes a while to unwind."""
    session: AmplifierSession

    async def work() -> None:
        if on_stop is not None:
            world.stop(session, immediate=True)
            on_stop()
        try:
            await a_moment()
        finally:
            with anyio.CancelScope(shield=True):
                await a_moment()

    session = at_work(world, "a", "b", a=work)
    return session


async def token_and_outer_timeout(world: World) -> None:
    """A native timeout fires while the turn unwinds from its token."""
    limit = asyncio.timeout(None)
    session = _stopped_world(
        world, lambda: limit.reschedule(asyncio.get_running_loop().time() + 0.005)
    )
    async with world.opened(session):
        try:
            async with limit:
                await world.execute(session)
        except (ExecutionCancelled, TimeoutError):
            pass
        await _nothing_is_left_over()


async def token_and_failing_sibling(world: World) -> None:
    """A task group whose other child fails while the turn unwinds from its token."""
    stopped = anyio.Event()
    session = _stopped_world(world, stopped.set)

    async def fail() -> None:
        await stopped.wait()
        await anyio.sleep(0.005)
        raise LookupError("a sibling")

    async with world.opened(session):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await world.execute(session)
        except* (ExecutionCancelled, LookupError):
            pass
        await _nothing_is_left_over()


async def scope_and_native_timeout(world: World) -> None:
    """An AnyIO scope and a native timeout around the same turn."""
    session = _stopped_world(world)
    async with world.opened(session):
        try:
            async with asyncio.timeout(0.02):
                with anyio.move_on_after(0.015):
                    await world.execute(session)
        except TimeoutError:
            pass
        await _nothing_is_left_over()


async def _nothing_is_left_over() -> None:
    """A stray cancellation would be raised here although no one cancels; a real one still passes."""
    task = asyncio.current_task()
    assert task is not None
    try:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
    except asyncio.CancelledError:
        assert task.cancelling() > 0, "a stray CancelledError"
        raise


@pytest.mark.parametrize(
    "scenario",
    [token_and_outer_timeout, token_and_failing_sibling, scope_and_native_timeout],
    ids=lambda scenario: scenario.__name__,
)
def test_two_different_stops_at_once(scenario: Callable[[World], Awaitable[None]]) -> None:
    # Without a third stop. With one, AnyIO and asyncio count the cancellations of one task
    # together, so no library on their public API can tell them apart.
    world = World(scenario)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(world.scenario())
    # The frame of the runner still refers to the scenario.
    assert [problem for problem in world.check() if "still referenced" not in problem] == []
