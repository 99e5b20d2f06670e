"""Native cancellation from all sides at every turn of the loop: storms of cancels, timeouts, failing siblings, the end of the loop.

asyncio only: trio has none of these. Whatever happens when: nothing hangs, everything that was opened is closed, and no task is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests._support.interrupts import interrupted
from tests.kernel.sweeps.test_interrupts import Resources, forked, left_early, opened_and_closed, streamed

SCENARIOS = [opened_and_closed, streamed, left_early, forked]
Scenario = Callable[[Resources], Awaitable[None]]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def stormed(run: Awaitable[None], at: int) -> None:
    """Ten cancels, one with every turn of the loop."""
    task = asyncio.ensure_future(run)
    await turns(at)
    for _ in range(10):
        task.cancel()
        await turns(1)
    await asyncio.gather(task, return_exceptions=True)


async def timed_out(run: Awaitable[None], at: int) -> None:
    """``asyncio.wait_for`` inside of another one, which gives up a moment later."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.wait_for(run, at / 1000), (at + 1) / 1000)


async def deserted(run: Awaitable[None], at: int) -> None:
    """A sibling in a task group fails, and its parent is cancelled while the group waits for the rest."""

    async def fail() -> None:
        await turns(at)
        raise ValueError("sibling")

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_coroutine(run))
            tasks.create_task(fail())

    parent = asyncio.ensure_future(group())
    await turns(at + 2)
    parent.cancel()
    await asyncio.gather(parent, return_exceptions=True)


async def abandoned(run: Awaitable[None], at: int) -> None:
    """The program ends while the session is in use: the end of the loop cancels every task that it knows."""
    task = asyncio.ensure_future(run)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await turns(at)


async def _coroutine(run: Awaitable[None]) -> None:
    await run


WAYS = [stormed, timed_out, deserted, abandoned]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_native_cancels_at_any_turn_of_the_loop_leave_nothing_behind(scenario: Scenario, way):
    wrong = []
    for at in range(0, 48, 3):
        world = Resources()

        async def main(world: Resources = world, at: int = at) -> None:
            await way(scenario(world), at)

        trial = interrupted(main, "asyncio", None, world.let_go)
        wrong += [f"{at}: {problem}" for problem in world.problems(trial)]
        wrong += [f"{at}: {name} is open" for name in world.open]
    assert wrong == []
