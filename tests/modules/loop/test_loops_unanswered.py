"""A conversation that ends without an answer is closed before the next prompt, so that no two user messages follow each other."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession, ExecutionCancelled, HookResult, RateLimitError
from amplifier.errors import ExecutionDenied
from amplifier.models.turns import INTERRUPTED
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.loop import read_options
from amplifier.modules.loop._messages import UNANSWERED
from amplifier.testing import (
    MODES,
    Delayed,
    MockContextManager,
    MockProvider,
    MockTool,
    cancel_everywhere,
)
from tests.modules.loop.test_loops import Agent
from tests.modules.loop.test_loops_cancelled import Slow

USER = {"role": "user", "content": "first"}
ANSWER = {"role": "assistant", "content": "answered"}
SYSTEM = {"role": "system", "content": "be kind"}
DEVELOPER = {"role": "developer", "content": "be brief"}
INJECTED = {
    "role": "user",
    "content": "mind the lint",
    "metadata": {"source": "hook", "hook_name": "lint"},
}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c1", "name": "a", "arguments": {}},
        {"id": "c2", "name": "b", "arguments": {}},
    ],
}
RESULT_1 = {"role": "tool", "tool_call_id": "c1", "content": "A"}
RESULT_2 = {"role": "tool", "tool_call_id": "c2", "content": "B"}
NOTE = {"role": "assistant", "content": UNANSWERED}
PROMPT = {"role": "user", "content": "hello"}
DONE = {"role": "assistant", "content": "done"}


def interrupted(call: str, name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "name": name, "content": INTERRUPTED}


# ── which ends are closed, and how ──


@pytest.mark.parametrize(
    ("stored", "closing"),
    [
        ([USER], [NOTE]),
        ([SYSTEM, USER], [NOTE]),
        ([USER, ANSWER, USER], [NOTE]),
        ([USER, CALLS, RESULT_1, RESULT_2], [NOTE]),
        ([USER, CALLS, RESULT_1], [interrupted("c2", "b"), NOTE]),
        ([USER, CALLS], [interrupted("c1", "a"), interrupted("c2", "b"), NOTE]),
        # what hooks injected into the turn that was cut off
        ([USER, SYSTEM], [NOTE]),
        ([USER, INJECTED], [NOTE]),
        ([USER, CALLS, RESULT_1, RESULT_2, SYSTEM, INJECTED], [NOTE]),
    ],
)
async def test_unanswered_end_is_closed_before_prompt(loop, stored, closing):
    agent = Agent(loop, ["done"], context=MockContextManager(stored))
    assert await agent.run() == "done"
    assert agent.context.messages == [*stored, *closing, PROMPT, DONE]
    assert [m.role for m in agent.provider.last_request.messages] == [
        m["role"] for m in (*stored, *closing, PROMPT)
    ]
    assert agent.broken_pairs() == []


@pytest.mark.parametrize(
    "stored",
    [
        [],
        [SYSTEM],
        [DEVELOPER],
        [INJECTED],
        [SYSTEM, INJECTED],
        [USER, ANSWER],
        [USER, ANSWER, SYSTEM],
        [USER, ANSWER, DEVELOPER],
        [USER, ANSWER, INJECTED],
        [USER, CALLS, RESULT_1, RESULT_2, ANSWER],
        [USER, ANSWER, INJECTED, SYSTEM],
        [USER, {**INJECTED, "role": "assistant"}],
    ],
)
async def test_other_ends_are_unchanged(loop, stored):
    agent = Agent(loop, ["done"], context=MockContextManager(stored))
    await agent.run()
    assert agent.context.messages == [*stored, PROMPT, DONE]


async def test_closing_note_precedes_hook_injections(loop):
    async def inject(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(
            action="inject_context",
            context_injection="today is Monday",
            context_injection_role="user",
        )

    agent = Agent(
        loop, ["done"], context=MockContextManager([USER]), hooks={"prompt:submit": inject}
    )
    await agent.run()
    assert [m["content"] for m in agent.context.messages] == [
        "first",
        UNANSWERED,
        "today is Monday",
        "hello",
        "done",
    ]


class Counting:
    """A context that counts how often everything is read."""

    def __init__(self) -> None:
        self._inner = MockContextManager()
        self.messages = self._inner.messages
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_messages(self) -> Any:
        self.reads += 1
        return await self._inner.get_messages()


@pytest.mark.parametrize(("config", "again"), [({}, 0), ({"system_prompt": "Be kind."}, 1)])
async def test_turn_reads_conversation_once_at_most(loop, config, again):
    turns: list[Any] = ["one", ("a", {}), "two", RateLimitError("no"), "three"]
    agent = Agent(
        loop, turns, MockTool("a"), config={"max_retries": 0, **config}, context=Counting()
    )
    async with agent.session as session:
        await session.execute("1")
        assert agent.context.reads == 1
        await session.execute("2")
        assert agent.context.reads == 1 + again
        with pytest.raises(RateLimitError):
            await session.execute("3")
        assert agent.context.reads == 1 + 2 * again
        await session.execute("4")  # which must find out that the third has no answer
        assert agent.context.reads == 2 + 2 * again


@pytest.mark.parametrize("config", [{}, {"system_prompt": "Be kind."}])
async def test_application_messages_between_turns_need_no_answer(loop, config):
    agent = Agent(loop, ["one", "two"], config=config)
    async with agent.session as session:
        await session.execute("first")
        await agent.context.add_message({"role": "user", "content": "the file has changed"})
        await session.execute("hello")
    assert UNANSWERED not in [m["content"] for m in agent.context.messages]


async def test_denied_prompt_is_not_answer(loop):
    prompts: list[str] = []

    async def deny_second(event: str, data: dict[str, Any]) -> HookResult:
        prompts.append(data["prompt"])
        return HookResult(action="deny" if len(prompts) == 2 else "continue")

    agent = Agent(
        loop,
        [RateLimitError("no"), "done"],
        config={"max_retries": 0},
        hooks={"prompt:submit": deny_second},
    )
    async with agent.session as session:
        with pytest.raises(RateLimitError):
            await session.execute("first")
        with pytest.raises(ExecutionDenied):
            await session.execute("denied")
        assert agent.context.messages == [USER]  # a denied prompt changes nothing
        await session.execute("hello")
    assert agent.context.messages == [USER, NOTE, PROMPT, DONE]


async def test_loop_checks_each_conversation():
    orchestrator = loop_basic.BasicLoop(read_options("loop-basic", {}))
    fresh, broken = MockContextManager(), MockContextManager([USER])
    core = Agent("loop-basic", []).session.coordinator
    for context in (fresh, broken, fresh):
        providers: dict[str, Any] = {"mock": MockProvider(["done"])}
        turn: dict[str, Any] = {
            "prompt": "hello",
            "context": context,
            "providers": providers,
            "tools": {},
        }
        await orchestrator.execute(hooks=core.hooks, coordinator=core, **turn)
    assert broken.messages == [USER, NOTE, PROMPT, DONE]
    assert fresh.messages == [PROMPT, DONE, PROMPT, DONE]


# ── turns that end without an answer ──


@pytest.mark.parametrize("how", ["an immediate stop", "a surrounding scope"])
async def test_stopped_turn_is_closed_by_next(loop, how):
    is_stop = how == "an immediate stop"

    async def answer_never(request: Any) -> str:
        agent.session.coordinator.cancellation.request_immediate() if is_stop else scope.cancel()
        await anyio.sleep_forever()
        return "never"

    agent = Agent(loop, [answer_never, "done"])
    async with agent.session as session:
        with (
            anyio.CancelScope() as scope,
            pytest.raises(ExecutionCancelled) if is_stop else nullcontext(),
        ):
            await session.execute("first")
        assert scope.cancelled_caught is not is_stop
        assert agent.context.messages == [USER]
        session.coordinator.cancellation.reset()
        assert await session.execute("hello") == "done"
    assert agent.context.messages == [USER, NOTE, PROMPT, DONE]


async def test_turn_at_iteration_limit_is_closed(loop):
    agent = Agent(loop, [("a", {}), "done"], MockTool("a"), config={"max_iterations": 1})
    async with agent.session as session:
        assert "max_iterations" in await session.execute("first")
        assert agent.data("orchestrator:complete")[0]["status"] == "incomplete"
        assert await session.execute("hello") == "done"
    assert agent.broken_pairs() == []
    roles = [m["role"] for m in agent.context.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert agent.context.messages[3] == NOTE


async def test_stored_open_prompt_is_closed_durably_once(
    tmp_path: Path,
):
    provider = MockProvider(
        [RuntimeError("the process might as well have died"), "done", "and again"]
    )

    def session(*, is_resumed: bool) -> AmplifierSession:
        context = {"module": "context-persistent", "config": {"path": str(tmp_path)}}
        plan = {
            "session": {"orchestrator": "loop-basic", "context": context},
            "providers": [provider],
        }
        return AmplifierSession(plan, session_id="anna-1", is_resumed=is_resumed)

    async with session(is_resumed=False) as first:
        with pytest.raises(RuntimeError):
            await first.execute("first")
    async with session(is_resumed=True) as second:
        assert await second.execute("hello") == "done"
    async with session(is_resumed=True) as third:
        assert await third.execute("more") == "and again"
        stored = await third.coordinator.get("context").get_messages()
    assert [m["content"] for m in stored] == [
        "first",
        UNANSWERED,
        "hello",
        "done",
        "more",
        "and again",
    ]


# ── cancelled at every await ──


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stored", [[USER], [USER, CALLS, RESULT_1]], ids=["prompt", "calls"])
def test_closing_cancelled_anywhere_keeps_valid_transcript(stored, mode):
    def make():
        context = Slow(stored)
        agent = Agent(
            "loop-basic",
            [Delayed(1, ("a", {})), Delayed(1, "done")],
            MockTool("a"),
            context=context,
        )

        def check():
            roles = [message["role"] for message in context.messages]
            notes = [message for message in context.messages if message["content"] == UNANSWERED]
            problems = [] if len(notes) <= 1 else [f"{len(notes)} notes"]
            if ("user", "user") in itertools.pairwise(roles):
                problems.append(f"two user messages in a row: {roles}")
            if PROMPT in context.messages and agent.broken_pairs():
                problems += agent.broken_pairs()
            return problems

        return agent.run, check

    cancel_everywhere(make, modes=[mode]).raise_if_broken()
