"""Closing, cancelled at every suspension: it goes on to its end, and the cancellation is delivered afterwards."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.errors import ExecutionCancelled, SessionStateError
from tests._support.world_modules import (
    Tool,
    a_moment,
    at_work,
    hooks_on_everything,
    hosted,
    loop,
    seed,
    tool,
)
from tests._support.worlds import World, sweep, swept


@swept(points=24)
async def test_raising_cleanup_stops_no_other(world: World) -> None:
    async def fail() -> None:
        await a_moment()
        raise ValueError("no")

    session = world.agent(
        tools={
            "tool-a": tool(world, "a"),
            "tool-seed": seed(world, "seed", closing=fail),
            "tool-hosted": hosted(world, "hosted", leaving=fail),
        },
        hooks={"hooks-all": hooks_on_everything(world)},
    )
    try:
        async with world.opened(session):
            await a_moment()
    finally:
        assert all(isinstance(failure.error, ValueError) for failure in session.cleanup_failures)


@swept(points=20)
async def test_hanging_cleanup_lets_others_run(world: World) -> None:
    session = world.agent(
        tools={
            "tool-a": tool(world, "a"),
            "tool-seed": seed(world, "seed", closing=anyio.sleep_forever),
            "tool-hosted": hosted(world, "hosted", leaving=anyio.sleep_forever),
            "tool-b": tool(world, "b"),
        },
        settings={"deadlines": {"cleanup": 5, "teardown": 7}},
    )
    async with world.opened(session):
        await a_moment()


async def wait_and_crash() -> None:
    await a_moment()
    raise ValueError("crashed in the background")


@swept(points=25)
async def test_background_work_ends_with_session(world: World) -> None:
    async def work(name: str) -> None:
        world.ledger.open(name)
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await a_moment()
            world.ledger.close(name)

    async def start(coordinator: Any) -> None:
        coordinator.start_soon(work, "first")
        coordinator.start_soon(wait_and_crash)
        coordinator.start_soon(work, "second")
        coordinator.start_soon(a_moment)

    session = world.agent(
        tools={"tool-a": seed(world, "a", after=start)},
        hooks={"hooks-all": hooks_on_everything(world)},
    )
    async with world.opened(session):
        await anyio.sleep(1)


@swept(points=20)
async def test_fatal_background_crash_ends_session(world: World) -> None:
    async def start(coordinator: Any) -> None:
        coordinator.start_soon(wait_long_and_crash, fatal=True)

    async def wait_long_and_crash() -> None:
        await anyio.sleep(1)
        raise ValueError("fatal")

    session = world.agent(
        tools={"tool-a": seed(world, "a", after=start), "tool-b": hosted(world, "b")},
        hooks={"hooks-all": hooks_on_everything(world)},
    )
    with pytest.raises(ValueError, match="fatal"):
        async with world.opened(session):
            await anyio.sleep_forever()


@swept(points=20)
async def test_fatal_crash_ends_turn_first(world: World) -> None:
    async def crash() -> None:
        raise ValueError("fatal")

    async def start_crash(coordinator: Any) -> None:
        coordinator.start_soon(crash, fatal=True)
        await anyio.sleep_forever()

    async def mount(coordinator: Any) -> None:
        await coordinator.mount(
            "tools", Tool(world, coordinator, "crash", lambda: start_crash(coordinator))
        )

    session = world.agent(
        loop=loop(world, ["crash", "a"]),
        tools={
            "tool-crash": seed(world, "crash", after=mount),
            "tool-a": tool(world, "a", anyio.sleep_forever),
        },
    )
    with pytest.raises(ValueError, match="fatal"):
        async with world.opened(session):
            await world.execute(session)


@swept(points=14)
async def test_application_error_keeps_type(
    world: World,
) -> None:
    async def fail() -> None:
        await a_moment()
        raise KeyError("the application's own")

    session = world.agent(tools={"tool-a": hosted(world, "a"), "tool-b": tool(world, "b")})
    with pytest.raises(KeyError):
        async with world.opened(session):
            await fail()


@swept(points=26)
async def test_closing_ends_turn_of_other_task(world: World) -> None:
    session = at_work(world, "a", a=anyio.sleep_forever)

    async def turn() -> None:
        # The second one if the session is closed before this task has had its first step.
        with pytest.raises((ExecutionCancelled, SessionStateError)):
            await world.execute(session)

    async with anyio.create_task_group() as group, world.opened(session):
        group.start_soon(turn)
        await anyio.sleep(5)


def test_closing_with_just_started_turn() -> None:
    async def scenario(world: World) -> None:
        session = world.agent()

        async def turn() -> None:
            with pytest.raises((ExecutionCancelled, SessionStateError)):
                await world.execute(session)

        async with anyio.create_task_group() as group, world.opened(session):
            group.start_soon(turn)
            while not session.statistics().turn_running:
                await anyio.lowlevel.checkpoint()

    def nothing_written(world: World) -> list[str]:
        return [f"the turn wrote {messages}" for messages in world.transcripts if messages]

    sweep(scenario, points=12, also=nothing_written)


@swept(points=12)
async def test_concurrent_closing_happens_once(world: World) -> None:
    session = world.agent(tools={"tool-a": tool(world, "a")})
    async with world.opened(session), anyio.create_task_group() as group:
        group.start_soon(session.cleanup)
        group.start_soon(session.cleanup)
