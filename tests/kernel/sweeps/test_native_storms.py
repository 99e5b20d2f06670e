"""Native cancels from all sides at every round of the loop: storms, timeouts, failing siblings.

asyncio only, because trio has none of these. Whatever happens when: nothing hangs, everything that
was opened is closed, and no task is left.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.testing.virtual_time import VirtualTimeLoop
from tests._support.small_agent import agent

DEADLINES = {"deadlines": {"mount": 5, "ready": 5, "hook": 5, "cleanup": 1, "teardown": 4}}


class Resources:
    """Everything that modules have opened and not closed, and the sessions."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.sessions: list[AmplifierSession] = []

    def seed(self) -> Any:
        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            async def cleanup() -> None:
                await anyio.sleep(0.01)
                self.open.remove("seed")

            self.open.append("seed")
            coordinator.register_cleanup(cleanup)
            await anyio.sleep(0.01)

        return mount

    def structured(self) -> Any:
        @asynccontextmanager
        async def mount(coordinator: Any, config: dict[str, Any]) -> AsyncIterator[None]:
            self.open.append("structured")
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.sleep_forever)
                    await anyio.sleep(0.01)
                    yield
                    group.cancel_scope.cancel()
            finally:
                self.open.remove("structured")

        return mount

    def attentive(self) -> Any:
        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            async def attend(event: str, data: dict[str, Any]) -> None:
                await anyio.sleep(0.01)

            async def pulse() -> None:
                self.open.append("pulse")
                try:
                    await anyio.sleep_forever()
                finally:
                    self.open.remove("pulse")

            coordinator.start_soon(pulse, name="pulse")
            return coordinator.hooks.register("*", attend, name="attentive")

        return mount

    def agent(self) -> AmplifierSession:
        async def body(turn: Any) -> str:
            await turn.hooks.emit("execution:start", {})
            try:
                await anyio.sleep(0.01)
            finally:
                await turn.hooks.emit("execution:end", {})
            return "done"

        session = agent(
            body,
            tools={"tool-seed": self.seed(), "tool-structured": self.structured()},
            hooks={"hooks-attentive": self.attentive()},
            session=DEADLINES,
        )
        self.sessions.append(session)
        return session

    def problems(self) -> Iterator[str]:
        """Yield what is wrong when the loop has ended."""
        for session in self.sessions:
            now = session.statistics()
            named = [str(failure) for failure in session.cleanup_failures]
            if now.state not in ("new", "closed") or now.turn_running:
                yield f"a session is {now}"
            self.open = [name for name in self.open if not any(name in text for text in named)]
        yield from (f"{name} is open" for name in self.open)


Scenario = Callable[[Resources], Awaitable[None]]


async def opened_and_closed(world: Resources) -> None:
    async with world.agent() as session:
        await session.execute("go")


async def streamed(world: Resources) -> None:
    async with world.agent() as session, session.stream("go") as events:
        async for _ in events:
            pass


async def left_early(world: Resources) -> None:
    async with world.agent() as session, session.stream("go") as events:
        async for _ in events:
            break


async def forked(world: Resources) -> None:
    async with world.agent() as session:
        child = session.fork()
        world.sessions.append(child)
        async with child:
            await child.execute("go")


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def stormed(run: Awaitable[None], at: int) -> None:
    """Cancel ten times, once in every round of the loop."""
    task = asyncio.ensure_future(run)
    await rounds(at)
    for _ in range(10):
        task.cancel()
        await rounds(1)
    await asyncio.gather(task, return_exceptions=True)


async def timed_out(run: Awaitable[None], at: int) -> None:
    """Run in ``asyncio.wait_for`` inside another one that gives up a moment later."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.wait_for(run, at / 1000), (at + 1) / 1000)


async def deserted(run: Awaitable[None], at: int) -> None:
    """Cancel the parent of a task group while it waits because a sibling has failed."""

    async def fail() -> None:
        await rounds(at)
        raise ValueError("sibling")

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_coroutine(run))
            tasks.create_task(fail())

    parent = asyncio.ensure_future(group())
    await rounds(at + 2)
    parent.cancel()
    await asyncio.gather(parent, return_exceptions=True)


async def abandoned(run: Awaitable[None], at: int) -> None:
    """End the program while the session is in use, which cancels every task."""
    task = asyncio.ensure_future(run)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await rounds(at)


async def _coroutine(run: Awaitable[None]) -> None:
    await run


# AnyIO wraps the coroutine of a task. If the task is cancelled before its first step, as the end of
# the loop does it, the inner one is never awaited.
@pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")
@pytest.mark.parametrize("way", [stormed, timed_out, deserted, abandoned])
@pytest.mark.parametrize("scenario", [opened_and_closed, streamed, left_early, forked])
def test_native_cancels_at_any_round(scenario: Scenario, way: Callable[..., Awaitable[None]]):
    wrong = []
    for at in range(0, 48, 3):
        world = Resources()

        async def main(world: Resources = world, at: int = at) -> None:
            await way(scenario(world), at)

        with (
            suppress(asyncio.CancelledError),
            asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        ):
            runner.run(main())
        wrong += [f"{at}: {problem}" for problem in world.problems()]
    gc.collect()
    assert wrong == []
