"""Child sessions, cancelled at every suspension of theirs and of their parents'."""

from __future__ import annotations

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ExecutionCancelled
from tests._support.world_modules import Agent, a_moment, at_work, hosted, seed, tool
from tests._support.worlds import World, swept


@swept(points=40)
async def test_child_run_inside_parent_tool(world: World) -> None:
    parent: AmplifierSession

    async def spawn() -> None:
        child = world.adopt(parent.fork(session_id="child"))
        async with world.opened(child):
            await world.execute(child)

    parent = world.agent(
        loop=seed(
            world, "loop", instance=lambda of: Agent(["spawn"] if of.parent_id is None else ["a"])
        ),
        tools={
            "tool-spawn": tool(world, "spawn", spawn),
            "tool-a": tool(world, "a"),
            "tool-b": hosted(world, "b"),
        },
    )
    async with world.opened(parent):
        await world.execute(parent)


@swept(points=40)
async def test_two_siblings_side_by_side(world: World) -> None:
    parent = at_work(world, "a", attentive=False)

    async def run(name: str) -> None:
        child = world.adopt(parent.fork(session_id=name))
        async with world.opened(child):
            await world.execute(child)

    async with world.opened(parent), anyio.create_task_group() as group:
        group.start_soon(run, "elder")
        group.start_soon(run, "younger")


@swept(points=25)
async def test_parent_stop_ends_child(world: World) -> None:
    parent = at_work(world, "a", attentive=False, a=anyio.sleep_forever)
    child = world.adopt(parent.fork(session_id="child"))

    async def stop() -> None:
        await anyio.sleep(5)
        world.stop(parent, immediate=True)

    async with world.opened(parent), anyio.create_task_group() as group:
        group.start_soon(stop)
        async with world.opened(child):
            with pytest.raises(ExecutionCancelled):
                await world.execute(child)


@swept(points=10)
async def test_unopened_child_is_forgotten_by_parent(world: World) -> None:
    parent = world.agent()
    async with world.opened(parent):
        child = world.adopt(
            parent.fork({"tools": [{"module": "tool-missing"}], "session": {"strict": True}})
        )
        with pytest.raises(ModuleNotFoundError):
            async with world.opened(child):
                await a_moment()
