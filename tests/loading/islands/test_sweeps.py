"""Sessions on trio whose modules live on an asyncio island, cancelled at every suspension: mount, call, stream, close."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from tests._support.world_modules import (
    a_moment,
    context,
    failing,
    hooks_on_everything,
    hosted,
    loop,
    seed,
    tool,
)
from tests._support.worlds import World, sweep


def on_island(mount: Any) -> Any:
    """The module on an asyncio island."""
    return SimpleNamespace(mount=mount, __amplifier_backends__=("asyncio",))


def on_trio(mount: Any) -> Any:
    """The module as it is."""
    return mount


@pytest.mark.parametrize(
    ("of_loop", "of_context", "of_tools", "of_hooks"),
    [
        pytest.param(on_island, on_island, on_island, on_island, id="all on the island"),
        pytest.param(
            on_island,
            on_trio,
            on_trio,
            on_trio,
            id="the loop on the island",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            on_trio, on_island, on_island, on_island, id="the loop on trio", marks=pytest.mark.slow
        ),
    ],
)
def test_turn_with_two_tools_and_all_hooks(of_loop, of_context, of_tools, of_hooks) -> None:
    async def scenario(world: World) -> None:
        session = world.agent(
            loop=of_loop(loop(world, ["a", "b"])),
            context=of_context(context(world)),
            tools={f"tool-{name}": of_tools(tool(world, name)) for name in "ab"},
            hooks={"hooks-all": of_hooks(hooks_on_everything(world))},
        )
        async with world.opened(session):
            assert await world.execute(session) == "done"

    sweep(scenario, points=20, modes=["trio"], has_threads=True)


@pytest.mark.slow
def test_opening_and_closing_of_mixed_modules() -> None:
    async def scenario(world: World) -> None:
        session = world.agent(
            loop=on_island(loop(world)),
            context=context(world),
            tools={
                "tool-a": on_island(tool(world, "a")),
                "tool-bad": on_island(failing(world, "bad", OSError("disk"))),
            },
            hooks={
                "hooks-h": on_island(hosted(world, "hosted")),
                "hooks-s": on_island(seed(world, "seed")),
            },
        )
        async with world.opened(session):
            await a_moment()

    sweep(scenario, points=12, modes=["trio"], has_threads=True)


def test_island_stream_read_on_trio() -> None:
    async def scenario(world: World) -> None:
        class Source:
            name = "source"

            async def stream(self) -> AsyncIterator[int]:
                world.ledger.open("stream")
                try:
                    for number in range(3):
                        await a_moment()
                        yield number
                finally:
                    world.ledger.close("stream")

        session = world.agent(
            loop=on_trio(loop(world)),
            context=context(world),
            tools={
                "tool-s": on_island(seed(world, "source", instance=None, after=_mounting(Source())))
            },
        )
        async with world.opened(session):
            tools: Any = session.coordinator.get("tools")
            source = tools["source"]
            assert [number async for number in source.stream()] == [0, 1, 2]
            async with aclosing(source.stream()) as numbers:
                assert await anext(numbers) == 0

    sweep(scenario, points=12, modes=["trio"], has_threads=True)


@pytest.mark.slow
def test_calls_back_and_forth() -> None:
    async def scenario(world: World) -> None:
        async def nested(coordinator: Any, depth: int) -> int:
            await a_moment()
            if depth == 0:
                return 0
            other = coordinator.get_capability("there" if depth % 2 else "back")
            return 1 + await other(depth - 1)

        async def island(coordinator: Any) -> None:
            coordinator.register_capability("there", lambda depth: nested(coordinator, depth))

        async def native(coordinator: Any) -> None:
            coordinator.register_capability("back", lambda depth: nested(coordinator, depth))

        session = world.agent(
            loop=loop(world),
            context=context(world),
            tools={
                "tool-i": on_island(seed(world, "island", after=island)),
                "tool-n": seed(world, "native", after=native),
            },
        )
        async with world.opened(session):
            with anyio.fail_after(60):
                assert await session.coordinator.get_capability("there")(6) == 6

    sweep(scenario, points=16, modes=["trio"], has_threads=True)


def _mounting(thing: Any) -> Any:
    async def mount(coordinator: Any) -> None:
        await coordinator.mount("tools", thing, name=thing.name)

    return mount
