"""Turns whose answer has a type."""

from __future__ import annotations

import json
from typing import Any, Literal

import attrs
import pytest

from amplifier import (
    AmplifierSession,
    BudgetExceeded,
    ExecutionCancelled,
    HookResult,
    ResultError,
    SessionStateError,
    ToolResult,
)
from amplifier.models import ProviderInfo, ResultDelta, to_dict
from amplifier.testing import MockContextManager, MockProvider, MockTool

from .test_loops import Agent, answering


@attrs.frozen
class City:
    """A city and how many people live there."""

    name: str
    people: int


PARIS = {"name": "Paris", "people": 2_100_000}
CITY = City("Paris", 2_100_000)


class StructuredProvider(MockProvider):  # type: ignore[misc]  # final for its users
    """A provider that constrains its answers to a schema."""

    def get_info(self) -> ProviderInfo:
        info: ProviderInfo = super().get_info()
        capabilities = ["tools", "structured_output"]
        return ProviderInfo(
            id=info.id, display_name="Mock", capabilities=capabilities, defaults=info.defaults
        )


def native(loop: str, turns: list[Any], *tools: Any, **options: Any) -> Agent:
    agent = Agent(loop, [], *tools, **options)
    agent.provider = StructuredProvider(turns)
    return agent


async def test_structured_output_provider_gets_schema(loop):
    agent = native(loop, [("look", {}), json.dumps(PARIS)], MockTool("look"))
    assert await agent.run(result_type=City) == CITY
    for request in agent.provider.requests:
        assert request.response_format.json_schema["name"] == "City"
        assert request.response_format.strict is True
        assert [spec.name for spec in request.tools] == ["look"]
    assert agent.broken_pairs() == []


async def test_other_providers_get_answer_tool(loop):
    look = MockTool("look")
    agent = Agent(loop, [("look", {}), ("final_result", PARIS)], look)
    assert await agent.run(result_type=City) == CITY
    assert look.call_count == 1
    assert agent.provider.requests[0].response_format is None
    spec = {spec.name: spec for spec in agent.provider.requests[0].tools}["final_result"]
    assert spec.parameters["required"] == ["name", "people"]
    assert "how many people" in spec.description
    assert agent.broken_pairs() == []
    assert agent.context.messages[-1]["role"] == "assistant"
    assert json.loads(agent.context.messages[-1]["content"]) == PARIS


LYON = {"name": "Lyon", "people": 520_000}


@pytest.mark.parametrize("limit", [1, 10])
async def test_first_answer_of_response_counts(loop, limit):
    calls = [("final_result", PARIS), ("look", {}), ("final_result", LYON), ("final_result", LYON)]
    for _ in range(5):  # trio starts tasks in random order
        look = MockTool("look")
        agent = Agent(loop, [calls], look, config={"max_parallel_tools": limit})
        assert await agent.run(result_type=City) == CITY
        assert look.call_count == 1
        first, _, second, third = [
            message["content"] for message in agent.context.messages if message["role"] == "tool"
        ]
        assert "accepted" in first
        assert "already" in second
        assert "already" in third
        assert agent.broken_pairs() == []


async def test_rejected_answer_gives_way_to_next(loop):
    async def gate(event: str, data: dict[str, Any]) -> HookResult:
        is_lyon = data["tool_input"].get("name") == "Lyon"
        return HookResult(action="deny", reason="not this one") if is_lyon else HookResult()

    wrong = {"name": "Nice", "people": "many"}
    for _ in range(5):
        agent = Agent(
            loop,
            [[("final_result", wrong), ("final_result", LYON), ("final_result", PARIS)]],
            hooks={"tool:pre": gate},
        )
        assert await agent.run(result_type=City) == CITY
        assert agent.provider.call_count == 1


async def test_answer_tool_does_not_hide_namesake(loop):
    own = MockTool("final_result")
    agent = Agent(loop, [("final_result", {}), ("final_result_", PARIS)], own)
    assert await agent.run(result_type=City) == CITY
    assert own.call_count == 1


async def test_model_sees_problems_and_retries(loop):
    wrong = {"name": "Paris", "people": "many"}
    agent = native(loop, [json.dumps(wrong), "no idea", json.dumps(PARIS)])
    assert await agent.run(result_type=City) == CITY
    assert "$.people" in str(agent.provider.requests[1].messages[-1].content)
    assert "expected JSON text" in str(agent.provider.requests[2].messages[-1].content)
    agent = Agent(loop, [("final_result", wrong), "Paris!", ("final_result", PARIS)])
    assert await agent.run(result_type=City) == CITY
    assert "people" in str(agent.provider.requests[1].messages[-1].content)
    assert "final_result" in str(agent.provider.requests[2].messages[-1].content)
    assert agent.broken_pairs() == []


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_last_attempt_raises_every_problem(loop, attempts):
    wrong = {"name": 1, "people": "many"}
    for agent in (
        native(loop, [json.dumps(wrong)] * attempts, config={"answer_attempts": attempts}),
        Agent(loop, [("final_result", wrong)] * attempts, config={"answer_attempts": attempts}),
    ):
        with pytest.raises(ResultError) as caught:
            await agent.run(result_type=City)
        assert sorted(path for path, _ in caught.value.problems) == ["$.name", "$.people"]
        assert agent.provider.call_count == attempts
        assert agent.broken_pairs() == []
        assert agent.data("execution:end")[-1]["status"] == "error"


async def test_literal_then_plain_turn(loop):
    agent = Agent(loop, [("final_result", {"result": "yes"}), "Because."])
    async with agent.session as session:
        answer = await session.execute("Is it?", result_type=Literal["yes", "no"])
        assert answer == "yes"
        assert await session.execute("Why?") == "Because."
        assert agent.provider.requests[1].tools is None
        assert "interrupted" not in str(agent.context.messages)


async def test_denied_final_result_counts_as_attempt(loop):
    gate = answering(HookResult(action="deny", reason="no"))
    agent = Agent(loop, [("final_result", PARIS)] * 3, hooks={"tool:pre": gate})
    with pytest.raises(ResultError, match="denied by a hook"):
        await agent.run(result_type=City)


async def test_graceful_stop_leaves_no_value(loop):
    async def stop(event: str, data: dict[str, Any]) -> HookResult:
        agent.session.coordinator.request_cancel()
        return HookResult()

    agent = Agent(
        loop, [("look", {}), ("final_result", PARIS)], MockTool("look"), hooks={"tool:pre": stop}
    )
    with pytest.raises(ExecutionCancelled) as caught:
        await agent.run(result_type=City)
    assert not caught.value.was_immediate
    assert agent.broken_pairs() == []


async def test_loop_without_keyword_is_refused():
    class Loop:
        async def execute(self, prompt: str, **kwargs: Any) -> str:
            raise AssertionError("must not be asked")

    async with AmplifierSession(
        {"session": {"orchestrator": Loop(), "context": "context-simple"}}
    ) as session:
        with pytest.raises(
            SessionStateError, match=r"Loop cannot give typed answers.*answer_format"
        ):
            await session.execute("hi", result_type=City)
        assert not session.coordinator.cancellation.is_cancelled
        with pytest.raises(AssertionError, match="must not be asked"):
            await session.execute("hi")


async def test_type_without_schema_is_refused(loop):
    agent = Agent(loop, ["hi"])
    async with agent.session as session:
        with pytest.raises(TypeError, match="JSON Schema"):
            await session.execute("hi", result_type=object)
        assert await session.execute("hi") == "hi"


async def test_stream_shows_growing_answer():
    agent = native("loop-streaming", [json.dumps(PARIS)])
    seen = []
    async with agent.session as session, session.stream("go", result_type=City) as events:
        async for event in events:
            if isinstance(event, ResultDelta):
                seen.append(event.value)
                assert to_dict(event)["value"] == event.value
    assert events.result == CITY
    assert seen[-1] == PARIS
    assert {"name": "Paris"} in seen
    assert [len(str(value)) for value in seen] == sorted(len(str(value)) for value in seen)


# ── turns that are resumed ───────────────────────────────────────────────────────────────────────

PROMPT = {"role": "user", "content": "which city?"}
CALLS = [
    {"id": "a", "name": "look", "arguments": {}},
    {"id": "b", "name": "final_result", "arguments": PARIS},
]


def cut_off(loop: str, stored: list[Any], turns: list[Any], look: MockTool | None = None) -> Agent:
    return Agent(loop, turns, look or MockTool("look"), context=MockContextManager(stored))


async def test_resumed_turn_has_given_type(loop):
    agent = cut_off(loop, [PROMPT], [("look", {}), ("final_result", PARIS), "Paris."])
    async with agent.session as session:
        assert await session.resume_turn(result_type=City) == CITY
    assert [spec.name for spec in agent.provider.requests[0].tools] == ["look", "final_result"]
    assert agent.broken_pairs() == []


async def test_resumed_stream_has_given_type(loop):
    agent = cut_off(loop, [PROMPT], [("final_result", PARIS)])
    async with agent.session as session, session.stream_resumed_turn(result_type=City) as events:
        names = [event.name async for event in events]
    assert events.result == CITY
    assert "turn:resumed" in names


async def test_typed_turn_resumes_after_budget(loop):
    agent = Agent(
        loop,
        [("look", {}), ("final_result", PARIS)],
        MockTool("look"),
        settings={"budget": {"model_calls": 1}},
    )
    async with agent.session as session:
        with pytest.raises(BudgetExceeded):
            await session.execute("which city?", result_type=City)
        session.budget.set_limits(model_calls=5)
        assert await session.resume_turn(result_type=City) == CITY


async def test_interrupted_answer_is_used_without_request(loop):
    look: Any = MockTool("look")
    look.repeatable = True
    agent = cut_off(
        loop, [PROMPT, {"role": "assistant", "content": "", "tool_calls": CALLS}], [], look
    )
    async with agent.session as session:
        assert await session.resume_turn(result_type=City) == CITY
    assert (agent.provider.call_count, look.call_count) == (0, 1)
    assert agent.broken_pairs() == []


async def test_kept_result_is_used_as_answer(loop):
    async def keep(step: Any, run: Any) -> Any:
        return ToolResult(output="kept") if step.kind == "tool" else await run()

    agent = cut_off(loop, [PROMPT, {"role": "assistant", "content": "", "tool_calls": CALLS}], [])
    agent.session.coordinator.register_step_wrapper(keep)
    async with agent.session as session:
        assert await session.resume_turn(result_type=City) == CITY
    assert agent.provider.call_count == 0


async def test_correction_does_not_restart_turn(loop):
    agent = native(loop, ["Paris.", ("look", {}), json.dumps(PARIS)], MockTool("look"))
    keys: list[str] = []

    async def note(step: Any, run: Any) -> Any:
        keys.append(step.key)
        if len(keys) == 3:
            raise LookupError("cut off")
        return await run()

    agent.session.coordinator.register_step_wrapper(note)
    async with agent.session as session:
        with pytest.raises(LookupError):
            await session.execute("which city?", result_type=City)
        agent.context.messages = agent.context.messages[
            :4
        ]  # without the result that says that the call was cut off
        await session.resume_turn(result_type=City)
    assert keys[3] == keys[2]


async def test_loop_resume_without_keyword_is_refused():
    class Loop:
        async def execute(self, prompt: str, answer_format: Any = None, **kwargs: Any) -> str:
            raise AssertionError("must not be asked")

        async def resume(self, **kwargs: Any) -> str:
            raise AssertionError("must not be asked")

    plan = {"session": {"orchestrator": Loop(), "context": "context-simple"}}
    async with AmplifierSession(plan) as session:
        with pytest.raises(
            SessionStateError, match=r"Loop cannot give typed answers: its resume has no parameter"
        ):
            await session.resume_turn(result_type=City)
