"""Requests to stop, with a cancellation from outside at every suspension of their unwinding."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ExecutionCancelled, ExecutionTimeout
from tests._support.world_modules import a_moment, at_work, loop, seed, tool
from tests._support.worlds import World, swept


@swept(points=30)
async def test_graceful_stop_lets_tools_finish(world: World) -> None:
    session: AmplifierSession

    async def stop() -> None:
        world.stop(session, immediate=False)
        await a_moment()

    session = at_work(world, "stop", "a", stop=stop)
    async with world.opened(session):
        assert await world.execute(session) == "done"


@swept(points=22)
async def test_graceful_stop_becomes_immediate_after_grace(world: World) -> None:
    session: AmplifierSession

    async def stop() -> None:
        world.stop(session, immediate=False, grace=5)
        await anyio.sleep_forever()

    session = at_work(world, "stop", stop=stop)
    async with world.opened(session):
        with pytest.raises(ExecutionCancelled):
            await world.execute(session)


@swept(points=26)
async def test_immediate_stop_inside_tool(world: World) -> None:
    session: AmplifierSession

    async def stop() -> None:
        world.stop(session, immediate=True)
        await anyio.sleep_forever()

    session = at_work(world, "a", "stop", a=anyio.sleep_forever, stop=stop)
    async with world.opened(session):
        with pytest.raises(ExecutionCancelled):
            await world.execute(session)
        session.coordinator.cancellation.reset()
        await a_moment()


@swept(points=24)
async def test_immediate_stop_with_slow_callbacks(world: World) -> None:
    session = at_work(world, "a", a=anyio.sleep_forever)
    called: list[str] = []

    async def callback() -> None:
        called.append("begun")
        await a_moment()
        called.append("ended")

    async def stop() -> None:
        await anyio.sleep(5)
        world.stop(session, immediate=True)

    session.coordinator.cancellation.on_cancel(callback)
    try:
        async with world.opened(session), anyio.create_task_group() as group:
            group.start_soon(stop)
            with pytest.raises(ExecutionCancelled):
                await world.execute(session)
            group.cancel_scope.cancel()
    finally:
        assert called in ([], ["begun", "ended"])


@swept(points=18)
async def test_turn_ending_during_request_announcement(world: World) -> None:
    session: AmplifierSession

    async def stop() -> None:
        world.stop(session, immediate=False)
        await anyio.sleep(1)

    async def listen_for_long(event: str, data: dict[str, Any]) -> None:
        await anyio.sleep(2)

    async def register(coordinator: Any) -> None:
        coordinator.hooks.register("cancel:requested", listen_for_long)

    session = world.agent(
        loop=loop(world, ["stop"]),
        tools={"tool-stop": tool(world, "stop", stop)},
        hooks={"hooks-slow": seed(world, "hooks", after=register)},
    )
    async with world.opened(session):
        assert await world.execute(session) == "done"


class CarelessAgent:
    """Unwinds inside a plain shield, as published orchestrators do."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def execute(self, prompt: str, hooks: Any) -> str:
        self._world.ledger.open("turn")
        try:
            await hooks.emit("execution:start", {})
            await anyio.sleep_forever()
        finally:
            await hooks.emit("execution:end", {"status": "cancelled"})
            with anyio.CancelScope(shield=True):
                await a_moment()
                await a_moment()
            self._world.ledger.close("turn")
        return ""


def careless(world: World) -> AmplifierSession:
    async def mount(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("orchestrator", CarelessAgent(world))

    return world.agent(loop=mount)


@swept(points=10)
async def test_stopped_turn_unwinds_undisturbed(world: World) -> None:
    """A second cancellation is the kernel's business, also when the first one was a request."""

    session = careless(world)

    async def stop() -> None:
        await anyio.sleep(5)
        world.stop(session, immediate=True)

    async with world.opened(session), anyio.create_task_group() as group:
        group.start_soon(stop)
        with pytest.raises(ExecutionCancelled):
            await world.execute(session)
        await a_moment()


@swept(points=10)
async def test_timed_out_turn_unwinds_undisturbed(world: World) -> None:
    """A second cancellation is the kernel's business, also when the first one was a deadline."""

    session = careless(world)
    async with world.opened(session):
        with pytest.raises(ExecutionTimeout):
            await world.execute(session, timeout=5)
        await a_moment()


@swept(points=8)
async def test_request_without_turn_is_announced(world: World) -> None:
    session = world.agent()
    async with world.opened(session):
        await a_moment()
        world.stop(session, immediate=True)
        with pytest.raises(ExecutionCancelled):
            await world.execute(session)


@swept(points=12)
async def test_immediate_stop_of_manual_session(world: World) -> None:
    session: AmplifierSession

    async def stop() -> None:
        world.stop(session, immediate=True)
        await anyio.sleep_forever()

    session = at_work(world, "stop", attentive=False, stop=stop)
    await session.initialize()
    world.has_opened(session)
    try:
        with pytest.raises(ExecutionCancelled):
            await world.execute(session)
    finally:
        await session.cleanup()
