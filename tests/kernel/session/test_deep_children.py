"""Children of children, deeper than Python's stack would allow if all of their turns were on one."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar

import anyio
import pytest

from amplifier.errors import ExecutionCancelled
from tests._support.small_agent import agent

pytestmark = pytest.mark.virtual_time

DEPTH = 150
level_of = ContextVar("level_of", default=0)


def chain(at_the_end):
    """A loop that forks a child and runs it, down to the last level."""
    unwound = []

    async def descend(turn):
        level = int(turn.prompt)
        assert level_of.get() == level - 1
        level_of.set(level)
        try:
            if level == DEPTH:
                return await at_the_end()
            async with turn.coordinator.session.fork() as child:
                answer = await child.execute(str(level + 1))
            assert level_of.get() == level
            return answer
        finally:
            unwound.append(level)

    return descend, unwound


ALL_OF_THEM = list(range(DEPTH, 0, -1))


async def test_deepest_answer_reaches_first_session():
    async def answer():
        await anyio.sleep(1)
        return "from the end"

    descend, unwound = chain(answer)
    async with agent(descend) as session:
        assert await session.execute("1") == "from the end"
    assert (unwound, level_of.get()) == (ALL_OF_THEM, 0)


async def test_deepest_error_keeps_type():
    async def fail():
        raise LookupError("nothing there")

    descend, unwound = chain(fail)
    async with agent(descend) as session:
        with pytest.raises(LookupError, match="nothing there"):
            await session.execute("1")
    assert unwound == ALL_OF_THEM


@pytest.mark.parametrize("how", ["stop", "scope"])
async def test_stop_or_scope_reaches_deepest_child(
    how,
):
    reached = anyio.Event()

    async def wait():
        reached.set()
        await anyio.sleep_forever()

    descend, unwound = chain(wait)
    async with agent(descend) as session, anyio.create_task_group() as group:

        async def cancel():
            await reached.wait()
            if how == "stop":
                session.coordinator.request_cancel(immediate=True)
            else:
                scope.cancel()

        group.start_soon(cancel)
        with (
            anyio.CancelScope() as scope,
            pytest.raises(ExecutionCancelled) if how == "stop" else nullcontext(),
        ):
            await session.execute("1")
        assert scope.cancelled_caught is (how == "scope")
    assert unwound == ALL_OF_THEM
