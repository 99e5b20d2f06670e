"""A full agent turn, cancelled at every suspension in every way: the transcript stays valid and nothing is left (L1, L5)."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import AmplifierSession, ChatResponse, ToolCall
from amplifier.testing import MODES, MockContextManager, MockProvider, MockTool, cancel_everywhere
from tests.modules.loop.test_loops import Agent


@pytest.mark.parametrize("mode", MODES)
def test_turn_cancelled_anywhere_keeps_valid_transcript(loop, mode):
    def make():
        async def work(given):
            await anyio.sleep(1)
            return given

        async def slow(event, data):
            await anyio.sleep(0.1)

        turns: list[Any] = [[("a", {"n": 1}), ("b", {}), ("nope", {})], ("a", {}), "done"]
        tools = MockTool("a", respond=work), MockTool("b", respond=work)
        agent = Agent(
            loop, turns, *tools, hooks={"tool:pre": slow, "tool:post": slow, "execution:end": slow}
        )

        def check():
            problems = agent.broken_pairs()
            names = agent.names()
            if names.count("execution:start") != names.count("execution:end"):
                problems.append("execution:start and execution:end do not pair up")
            if agent.session.statistics().handlers:
                problems.append("handlers are left")
            return problems

        return agent.run, check

    cancel_everywhere(make, modes=[mode]).raise_if_broken()


@pytest.mark.parametrize("mode", ["asyncio-native-twice", "asyncio-all"])
@pytest.mark.parametrize("count", [1, 3])
def test_tool_unwinds_fully_under_cancellation(count, mode):
    """A second cancel of the caller and the end of the loop leave the shields of a tool alone, also of one beside others."""

    def make():
        begun: list[str] = []
        unwound: list[str] = []

        async def work(given):
            try:
                await anyio.sleep(1)
            except anyio.get_cancelled_exc_class():
                begun.append("tool")
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.5)
                    await anyio.sleep(0.5)
                    unwound.append("tool")
                raise
            return given

        agent = Agent("loop-basic", [[("a", {})] * count, "done"], MockTool("a", respond=work))
        return (
            agent.run,
            lambda: agent.broken_pairs() + (["a tool was cut off"] if begun != unwound else []),
        )

    cancel_everywhere(make, modes=[mode]).raise_if_broken()


def numbered(*names: str) -> ChatResponse:
    """An answer of a provider that numbers the calls of each answer anew."""
    calls = [
        ToolCall(id=f"call_{number}", name=name, arguments={}) for number, name in enumerate(names)
    ]
    return ChatResponse(content=[], tool_calls=calls)


async def test_cancelled_turn_stores_own_results(loop):
    prompts: list[str] = []
    with anyio.CancelScope() as scope:

        async def work(given):
            await anyio.wait_all_tasks_blocked()  # the others have returned
            if len(prompts) == 2:
                scope.cancel()
                await anyio.sleep_forever()
            return "worked"

        quick = MockTool("quick", respond=lambda given: f"done for {prompts[-1]}")
        turns = [numbered("quick", "work", "quick"), "one", numbered("quick", "work", "quick")]
        agent = Agent(loop, turns, quick, MockTool("work", respond=work))
        async with agent.session as session:
            for prompt in ("first", "second"):
                prompts.append(prompt)
                await session.execute(prompt)
    assert scope.cancelled_caught
    assert agent.broken_pairs() == []
    results = [m["content"] for m in agent.context.messages if m["role"] == "tool"]
    assert results[:3] == ["done for first", "worked", "done for first"]
    assert results[3:] == ["done for second", "cancelled while it was running", "done for second"]


async def test_result_survives_cancellation_during_hooks(loop):
    with anyio.CancelScope() as scope:

        async def stop(event, data):
            scope.cancel()
            await anyio.sleep_forever()

        agent = Agent(
            loop, [("quick", {})], MockTool("quick", output="Q"), hooks={"tool:post": stop}
        )
        await agent.run()
    assert scope.cancelled_caught
    assert [m["content"] for m in agent.context.messages if m["role"] == "tool"] == ["Q"]


class Slow:
    """A context that takes its time before and after every write, as one on a disk does."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._inner = MockContextManager(messages)
        self.messages = self._inner.messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_messages(self) -> Any:
        await anyio.sleep(0.1)
        return await self._inner.get_messages()

    async def add_message(self, message: dict[str, Any]) -> None:
        await anyio.sleep(0.1)
        await self._inner.add_message(message)
        await anyio.sleep(0.1)


@pytest.mark.parametrize("count", [1, 2])
async def test_tool_swallowing_cancellation_ends_turn(loop, count, anyio_backend_name):
    """A native cancellation on asyncio, such as Ctrl-C, comes once; the model does not answer after it."""
    begun = anyio.Event()

    async def stubborn() -> str:
        """Go on whatever happens."""
        begun.set()
        try:
            await anyio.sleep_forever()
        except BaseException:  # as careless code does
            return "swallowed"
        return "never"

    async def answer(request: Any) -> Any:
        await anyio.lowlevel.checkpoint()  # as every model does that is asked over a network
        return [("stubborn", {})] * count if len(request.messages) == 1 else "Done."

    model = MockProvider(answer)
    plan = {
        "session": {"orchestrator": loop, "context": "context-simple"},
        "providers": [model],
        "tools": [stubborn],
    }
    async with AmplifierSession(plan) as session:
        if anyio_backend_name == "asyncio":
            turn = asyncio.ensure_future(session.execute("go"))
            await begun.wait()
            await anyio.wait_all_tasks_blocked()
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
        else:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(session.execute, "go")
                    await begun.wait()
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
        assert session.last_turn is not None
        assert session.last_turn.stop_reason == "cancelled"
        roles = [message["role"] for message in await session.messages()]
        assert roles == ["user", "assistant", *["tool"] * count]
        assert await session.execute("once more") == "Done."
