"""Single calls into a session, cancelled at every suspension: events, contributions, hosting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from amplifier.kernel.runtime.child import run_in_child
from tests._support.world_modules import a_moment, hold, seed
from tests._support.worlds import World, swept


@swept(points=12)
async def test_terminal_events_reach_slow_handlers(world: World) -> None:
    delivered: list[str] = []

    async def note(event: str, data: dict[str, Any]) -> None:
        await a_moment()
        delivered.append(event)

    async def register(coordinator: Any) -> None:
        for event in ("tool:error", "orchestrator:complete"):
            coordinator.hooks.register(event, note, name=event)

    session = world.agent(hooks={"hooks-a": seed(world, "hooks", after=register)})
    async with world.opened(session):
        emit = session.coordinator.hooks.emit

        async def unwind() -> None:
            try:
                await a_moment()
            finally:
                try:
                    await emit("tool:error", {})
                finally:
                    await emit("orchestrator:complete", {"status": "cancelled"})
                    assert delivered == ["tool:error", "orchestrator:complete"]

        # As a turn runs. In the application's own task a native cancel goes through a shield.
        await run_in_child(unwind, name="unwind")


@swept(points=14)
async def test_overrunning_handler_lets_next_run(world: World) -> None:
    async def register(coordinator: Any) -> None:
        coordinator.hooks.register(
            "world:event", lambda event, data: hold(world, "handler"), timeout=5
        )
        coordinator.hooks.register("world:event", lambda event, data: a_moment())
        coordinator.hooks.register("hook:timeout", lambda event, data: a_moment())

    session = world.agent(hooks={"hooks-a": seed(world, "hooks", after=register)})
    async with world.opened(session):
        result = await session.coordinator.hooks.emit("world:event", {})
        assert result.action == "continue"


@swept(points=12)
async def test_collected_handlers_end_together(world: World) -> None:
    async def answer(event: str, data: dict[str, Any]) -> dict[str, Any]:
        await a_moment()
        return {"action": "continue", "data": {"answered": True}}

    async def register(coordinator: Any) -> None:
        coordinator.hooks.register("world:event", answer)
        coordinator.hooks.register("world:event", lambda event, data: hold(world, "handler"))

    session = world.agent(hooks={"hooks-a": seed(world, "hooks", after=register)})
    async with world.opened(session):
        assert await session.coordinator.hooks.emit_and_collect("world:event", {}) == [
            {"answered": True}
        ]


@swept(points=16)
async def test_slow_and_hanging_contributors(world: World) -> None:
    async def register(coordinator: Any) -> None:
        coordinator.register_contributor("names", "hanging", lambda: hold(world, "contributor"))

    session = world.agent(
        tools={"tool-a": seed(world, "a", after=register), "tool-b": seed(world, "b")}
    )
    async with world.opened(session):
        names = await session.coordinator.collect_contributions("names")
        assert names == ["loop", "context", "a", "b"]


@swept(points=18)
async def test_application_hosted_context_manager(world: World) -> None:
    @asynccontextmanager
    async def connection() -> AsyncIterator[None]:
        world.ledger.open("connection")
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                await a_moment()
                yield
                group.cancel_scope.cancel()
            await a_moment()
        finally:
            with anyio.CancelScope(shield=True):
                await a_moment()
            world.ledger.close("connection")

    session = world.agent()
    async with world.opened(session):
        leave = await session.coordinator.host(connection())
        await a_moment()
        await leave()
        await session.coordinator.host(connection())
