"""Doubles with a script: in order, loud about steps too many and steps unused, and true to their contracts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import agent
from amplifier.errors import ApprovalTimeoutError, RateLimitError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    TextBlock,
    ToolCall,
    ToolCallBlock,
)
from amplifier.testing import (
    Delayed,
    EventRecorder,
    MockApprovalSystem,
    MockContextManager,
    MockProvider,
    ScriptedOrchestrator,
    script,
)
from amplifier.testing.doubles.scripted import Script, Scripted


class Player(Scripted):
    def __init__(self, steps: list[str]) -> None:
        self._script: Script | None = Script("Player", steps, "step")

    def play(self) -> str:
        assert self._script is not None
        return str(self._script.take("play()"))


@given(steps=st.lists(st.text()), calls=st.integers(0, 8))
def test_script_needs_exactly_its_calls(steps: list[str], calls: int) -> None:
    played = Script("Player", steps, "step")
    taken = [played.take("play()") for _ in range(min(calls, len(steps)))]
    assert taken == steps[: len(taken)]
    assert played.remaining == steps[len(taken) :]
    if calls > len(steps):
        with pytest.raises(AssertionError, match="unexpected call"):
            played.take("play()")
    if calls == len(steps):
        played.assert_exhausted()
    else:
        with pytest.raises(AssertionError):
            played.assert_exhausted()


def test_unexpected_call_error_names_double() -> None:
    player = Player(["one"])
    player.play()
    with pytest.raises(
        AssertionError,
        match=r"Player: unexpected call 2, play\(\); expected 1 step, all of which were",
    ):
        player.play()
    with pytest.raises(AssertionError, match="unexpected call 3"):
        player.play()


def test_unused_steps_are_listed() -> None:
    player = Player(["a", "b" * 500, "c", "d", "e"])
    player.play()
    with pytest.raises(
        AssertionError, match=r"Player: 4 of 5 steps never played: 'bbb.*…, 'c', 'd', …;"
    ):
        player.assert_exhausted()


def test_exception_in_block_is_not_hidden() -> None:
    with pytest.raises(KeyError), Player(["unused"]):
        raise KeyError


# ── scripts of user programs ─────────────────────────────────────────────────────────────────────


async def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


async def test_script_drives_agent() -> None:
    with script(("weather", {"city": "Oslo"}), "It rains.") as model:
        async with agent(model, tools=[weather]) as session:
            assert [piece async for piece in session.stream_text("Rain?")] == ["It ", "rains."]
    assert model.last_request.messages[-1].content == "rain in Oslo"


async def test_surplus_and_missing_requests_fail() -> None:
    """A surplus request fails the turn and the block, a missing one fails the block."""
    model = script("one")
    async with agent(model) as session:
        await session.execute("1")
        with pytest.raises(
            AssertionError, match=r"unexpected call 2, stream\(3 messages\); expected 1 turn"
        ):
            await session.execute("2")
    with pytest.raises(AssertionError, match="unexpected call 2"), model:
        pass
    with (
        pytest.raises(AssertionError, match="1 of 2 turns never played: 'two'"),
        script("one", "two") as model,
    ):
        async with agent(model) as session:
            await session.execute("1")


TESTS = """
import pytest
from amplifier import agent

pytestmark = pytest.mark.anyio

async def test_played(amplifier_script):
    async with agent(amplifier_script("Hello.")) as session:
        assert await session.execute("Hi!") == "Hello."

async def test_too_few(amplifier_script):
    async with agent(amplifier_script("Hello.", "unused")) as session:
        await session.execute("Hi!")

async def test_too_many_and_hidden(amplifier_script):
    async with agent(amplifier_script()) as session:
        with pytest.raises(AssertionError):
            await session.execute("Hi!")
"""


def test_fixture_checks_scripts_at_end(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "test_it.py",
    ]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "6 passed, 4 errors" in done.stdout, done.stdout
    assert "1 of 2 turns never played: 'unused'" in done.stdout
    assert "MockProvider 'mock': unexpected call 1" in done.stdout


def request(text: str = "hi") -> ChatRequest:
    return ChatRequest(messages=[Message(role="user", content=text)])


async def test_provider_without_script_answers_every_call() -> None:
    provider = MockProvider()
    for _ in range(3):
        response = await provider.complete(request(), unknown_option=1)
        assert response.content == [TextBlock(text="Mock response")]
        assert response.tool_calls is None
        assert provider.parse_tool_calls(response) == []
    assert provider.call_count == 3
    assert provider.options == [{"unknown_option": 1}] * 3
    provider.assert_exhausted()


async def test_function_answers_every_request() -> None:
    provider = MockProvider(lambda asked: f"{len(asked.messages)} messages")
    for _ in range(2):
        assert (await provider.complete(request())).content == [TextBlock(text="1 messages")]
    assert provider.call_count == 2
    provider.assert_exhausted()


async def test_tool_calls_have_unique_ids() -> None:
    provider = MockProvider(
        [
            ("echo", {"x": 1}),
            ["Let me look.", ("read", {}), ToolCall(id="own", name="ls", arguments={})],
        ]
    )
    first, second = [await provider.complete(request()) for _ in range(2)]
    assert provider.parse_tool_calls(first) == [
        ToolCall(id="call_1", name="echo", arguments={"x": 1})
    ]
    assert first.content == [ToolCallBlock(id="call_1", name="echo", input={"x": 1})]
    assert first.finish_reason == "tool_calls"
    assert second.content[0] == TextBlock(text="Let me look.")
    assert [(call.id, call.name) for call in provider.parse_tool_calls(second)] == [
        ("call_2", "read"),
        ("own", "ls"),
    ]


async def test_whole_response_is_unchanged_and_unshared() -> None:
    scripted = ChatResponse(
        content=[ToolCallBlock(id="a", name="ls", input={})], finish_reason="length"
    )
    provider = MockProvider([scripted])
    response = await provider.complete(request())
    assert response == scripted
    assert response is not scripted
    assert provider.parse_tool_calls(response) == [ToolCall(id="a", name="ls", arguments={})]
    response.tool_calls = []
    assert provider.parse_tool_calls(response) == []


@pytest.mark.parametrize("turn", [RateLimitError("slow down"), RateLimitError])
async def test_exception_is_raised_once(turn: Any) -> None:
    with MockProvider([turn, "better"]) as provider:
        with pytest.raises(RateLimitError):
            await provider.complete(request())
        assert (await provider.complete(request())).content == [TextBlock(text="better")]


async def test_turn_may_depend_on_request() -> None:
    async def later(asked: ChatRequest) -> list[Any]:
        return [("count", {"n": len(asked.messages)})]

    provider = MockProvider([lambda asked: f"you said {asked.messages[0].content}", later])
    assert (await provider.complete(request("hello"))).content == [TextBlock(text="you said hello")]
    assert provider.parse_tool_calls(await provider.complete(request()))[0].arguments == {"n": 1}


async def test_requests_are_remembered_as_they_were() -> None:
    provider, asked = MockProvider(), request("first")
    assert provider.last_request is None
    await provider.complete(asked)
    asked.messages.append(Message(role="user", content="second"))
    assert provider.last_request == provider.requests[0] == request("first")
    assert repr(provider) == "<MockProvider 'mock' called 1 times>"


async def test_provider_describes_itself_and_its_model() -> None:
    provider = MockProvider(name="tiny", defaults={"context_window": 1000})
    info, models = provider.get_info(), await provider.list_models()
    assert info.id == "tiny"
    assert info.defaults["context_window"] == models[0].context_window == 1000
    assert info.defaults["max_output_tokens"] == models[0].max_output_tokens == 4096


@pytest.mark.virtual_time
async def test_delays_add_up_on_loop_clock() -> None:
    provider = MockProvider([Delayed(20, "late"), Delayed(5, RuntimeError("late too"))], delay=1)
    began = anyio.current_time()
    await provider.complete(request())
    assert anyio.current_time() - began == pytest.approx(21)
    with pytest.raises(RuntimeError):
        await provider.complete(request())
    assert anyio.current_time() - began == pytest.approx(27)


async def test_unplayable_turn_error_lists_alternatives() -> None:
    with pytest.raises(
        TypeError, match=r"cannot play 42; expected text, a ToolCall, \(name, arguments\)"
    ):
        await MockProvider([42]).complete(request())  # type: ignore[list-item]  # the mistake under test
    with pytest.raises(TypeError, match="takes a list of turns"):
        MockProvider("hello")


async def test_orchestrator_responses_in_order() -> None:
    loop = ScriptedOrchestrator(responses=["Response 1", "Response 2"])
    assert await loop.execute("a") == "Response 1"
    with pytest.raises(AssertionError, match="1 of 2 responses never played: 'Response 2'"):
        loop.assert_exhausted()
    assert await loop.execute("b") == "Response 2"
    loop.assert_exhausted()
    with pytest.raises(
        AssertionError, match=r"unexpected call 3, execute\('c'\); expected 2 responses"
    ):
        await loop.execute("c")
    assert loop.prompts == ["a", "b", "c"]
    assert repr(loop) == "<ScriptedOrchestrator called 3 times>"


async def test_orchestrator_stores_conversation_and_emits_events() -> None:
    context, hooks = MockContextManager(), EventRecorder()
    with ScriptedOrchestrator(["yes"]) as loop:
        await loop.execute(
            prompt="well?", context=context, providers={}, tools={}, hooks=hooks, coordinator=None
        )
    assert context.messages == [
        {"role": "user", "content": "well?"},
        {"role": "assistant", "content": "yes"},
    ]
    assert hooks.events == [
        ("execution:start", {"prompt": "well?"}),
        ("execution:end", {"response": "yes", "status": "completed"}),
        (
            "orchestrator:complete",
            {"orchestrator": "ScriptedOrchestrator", "turn_count": 1, "status": "success"},
        ),
    ]
    assert loop.calls[0].keys() == {
        "prompt",
        "context",
        "providers",
        "tools",
        "hooks",
        "coordinator",
    }


async def test_response_may_be_exception_or_function() -> None:
    async def shout(prompt: str) -> str:
        return prompt.upper()

    hooks = EventRecorder()
    with ScriptedOrchestrator([LookupError("lost"), str.title, shout]) as loop:
        with pytest.raises(LookupError, match="lost"):
            await loop.execute("a", hooks=hooks)
        assert await loop.execute("quiet") == "Quiet"
        assert await loop.execute("quiet") == "QUIET"
    assert [data.get("status") for _, data in hooks.events] == [None, "error", "incomplete"]


@pytest.mark.virtual_time
async def test_cancelled_turn_emits_end() -> None:
    hooks = EventRecorder()
    with anyio.move_on_after(1) as scope:
        await ScriptedOrchestrator(["late"], delay=60).execute("a", hooks=hooks)
    assert scope.cancelled_caught
    assert [data.get("status") for _, data in hooks.events] == [None, "cancelled", "cancelled"]


async def test_non_text_response_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a list of responses"):
        ScriptedOrchestrator("hello")
    with pytest.raises(TypeError, match="cannot answer with 42"):
        await ScriptedOrchestrator([42]).execute("a")  # type: ignore[list-item]  # the mistake under test


async def test_questions_without_script_get_default() -> None:
    system = MockApprovalSystem()
    assert await system.request_approval("May I?", ["Allow", "Deny"], 300, "deny") == "Deny"
    assert await system.request_approval("May I?", ["Allow", "Deny"], 300, "allow") == "Allow"
    system.assert_exhausted()


async def test_approval_script_answers_in_order() -> None:
    with MockApprovalSystem(["Allow once", ApprovalTimeoutError("too late")]) as system:
        assert await system.request_approval("A?", ["Allow once"], 1.5, "deny") == "Allow once"
        with pytest.raises(ApprovalTimeoutError):
            await system.request_approval("B?", [], 2, "allow")
    assert [request["prompt"] for request in system.requests] == ["A?", "B?"]
    assert system.requests[0] == {
        "prompt": "A?",
        "options": ["Allow once"],
        "timeout": 1.5,
        "default": "deny",
    }
    assert repr(system) == "<MockApprovalSystem asked 2 times>"


async def test_function_answers_every_question() -> None:
    async def answer(prompt: str) -> str:
        return f"Allow {prompt}"

    system = MockApprovalSystem(answer)
    assert [await system.request_approval(prompt, [], 1, "deny") for prompt in "ab"] == [
        "Allow a",
        "Allow b",
    ]
    assert len(system.requests) == 2
    system.assert_exhausted()


async def test_plain_function_answers_questions() -> None:
    system = MockApprovalSystem(lambda prompt: f"Allow {prompt}")  # type: ignore[arg-type,return-value]  # it is annotated as async
    assert await system.request_approval("a", [], 1, "deny") == "Allow a"


async def test_returned_exception_is_raised_before_delay() -> None:
    asked: list[str] = []

    async def answer(prompt: str) -> str:
        asked.append(prompt)
        return TimeoutError("nobody is there")  # type: ignore[return-value]  # what a test may do

    with pytest.raises(TimeoutError, match="nobody is there"):
        await MockApprovalSystem(answer).request_approval("A?", [], 1, "deny")
    with anyio.move_on_after(0):
        await MockApprovalSystem(answer, delay=5).request_approval("B?", [], 1, "deny")
    assert asked == ["A?", "B?"]
