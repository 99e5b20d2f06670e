"""hooks-otel: the same spans on both backends, none left open or without its parent, and nothing in them that must not be."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import metrics, trace

from amplifier import AmplifierSession
from amplifier.errors import LLMError
from amplifier.events import CATALOGUE, TRACE_ROLES
from amplifier.testing import LOOP_END_MODES, MODES, cancel_everywhere
from tests.modules.hooks.otel.scenarios import OVERRUN, SCENARIOS, Scenario, call, calls, task
from tests.modules.hooks.otel.traces import Traces

SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.mark.parametrize("name", SCENARIOS)
async def test_scenario_leaves_its_tree_of_spans(traces, name):
    await SCENARIOS[name].run()
    assert traces.tree() == SCENARIOS[name].tree
    assert traces.problems() == []


@pytest.mark.virtual_time
async def test_overrunning_turn_leaves_span_tree(traces):
    await OVERRUN.run()
    assert traces.tree() == OVERRUN.tree
    assert traces.problems() == []


@pytest.mark.parametrize("mode", [*MODES, *LOOP_END_MODES])
def test_cancelled_turn_leaves_no_open_span(traces, mode):
    scenario = Scenario(
        answers=[calls(call("echo", "c1"), task("helper", "c2")), "done"],
        children={"helper": ["helped"]},
        tree=[],
    )

    def make() -> Any:
        traces.clear()
        return scenario.run, traces.problems

    report = cancel_everywhere(make, modes=[mode], second_after=(1, 3), max_points=40)
    report.raise_if_broken()
    assert report.points[mode] > 10


# ── what spans hold ──────────────────────────────────────────────────────────────────────────────


async def test_spans_have_attributes_of_conventions(traces):
    answers = [
        {
            **calls(call("echo", text="x")),
            "usage": {"input_tokens": 30, "output_tokens": 4, "cache_read_tokens": 7},
        }
    ]
    scenario = Scenario(answers=[*answers, "done"], tree=[])
    async with scenario.session() as session:
        await session.execute("begin")
        session_id = session.session_id
    chat = next(span for span in traces.ended if span.name == "chat mock-model")
    assert chat.kind == trace.SpanKind.CLIENT
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mock",
        "gen_ai.conversation.id": session_id,
        "gen_ai.agent.name": "amplifier",
        "gen_ai.request.model": "mock-model",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "mock-model",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 7,
        "amplifier.iteration": 1,
    }
    tool = traces.named("execute_tool echo")
    assert tool.kind == trace.SpanKind.INTERNAL
    assert dict(tool.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Mock tool echo.",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.conversation.id": session_id,
        "gen_ai.agent.name": "amplifier",
        "amplifier.iteration": 1,
    }
    turn = traces.named("invoke_agent amplifier")
    assert dict(turn.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "amplifier",
        "gen_ai.conversation.id": session_id,
        "gen_ai.provider.name": "mock",
        "amplifier.turn": 1,
    }


async def test_call_names_its_server(traces):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    config = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "k"}
    plan = {
        "session": {
            "orchestrator": {"module": "loop-basic", "config": {"max_retries": 0}},
            "context": "context-simple",
        },
        "providers": [{"module": "provider-openai-compatible", "config": config}],
        "hooks": ["hooks-otel"],
    }
    async with AmplifierSession(plan) as session:
        with pytest.raises(LLMError):
            await session.execute("begin")
    asked = next(span for span in traces.ended if span.name.startswith("chat "))
    assert (asked.attributes["server.address"], asked.attributes["server.port"]) == (
        "127.0.0.1",
        port,
    )


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ("provider:request", "messages"),
        ("provider:response", "response"),
        ("llm:request", "raw"),
        ("tool:error", "error"),
    ],
)
async def test_nothing_is_copied_of_conversations_and_answers(traces, event, field):
    async with Scenario(answers=["done"], tree=[]).session() as session:
        hooks = session.coordinator.hooks
        hooks.unregister("event-recorder")
        assert hooks.has_handlers("execution:start", "prompt")
        assert not hooks.has_handlers(event, field)


async def test_durations_and_tokens_are_measured(traces):
    usage = {"input_tokens": 30, "output_tokens": 4}
    cached = {**usage, "cache_read_tokens": 15}
    answers = [
        {**calls(call("fail", "c1"), call("echo", "c2")), "usage": usage},
        {"text": "done", "usage": cached},
    ]
    await Scenario(answers=answers, tree=[]).run()
    found = traces.metrics()
    chat = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "mock"}
    models = {"gen_ai.request.model": "mock-model", "gen_ai.response.model": "mock-model"}
    assert found["gen_ai.client.token.usage"] == [
        ({**chat, **models, "gen_ai.token.type": "input"}, 2, 60),
        ({**chat, **models, "gen_ai.token.type": "output"}, 2, 8),
    ]
    assert found["amplifier.client.cache_hit_rate"] == [({**chat, **models}, 1, 0.5)]
    assert [point[:2] for point in found["gen_ai.client.operation.duration"]] == [
        ({**chat, **models}, 2)
    ]
    tools = {point[0]["gen_ai.tool.name"]: point for point in found["gen_ai.execute_tool.duration"]}
    assert tools["fail"][0]["error.type"] == "ValueError"
    assert "error.type" not in tools["echo"][0]
    [first] = found["gen_ai.client.operation.time_to_first_chunk"]
    assert (first[0]["gen_ai.operation.name"], first[1]) == ("chat", 2)
    assert found["gen_ai.client.operation.time_per_output_chunk"][0][1] >= 1
    who = {"gen_ai.agent.name": "amplifier"}
    assert found["gen_ai.invoke_agent.inference_calls"] == [(who, 1, 2)]
    assert found["gen_ai.invoke_agent.tool_calls"] == [(who, 1, 2)]
    [agent] = found["gen_ai.invoke_agent.duration"]
    assert agent[0] == {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "amplifier"}
    assert agent[2] > 0


@pytest.mark.virtual_time
async def test_events_are_added_to_innermost_span(traces):
    answers = [{"error": {"type": "RateLimitError", "message": "slow down"}}, calls(task()), "done"]
    await Scenario(answers=answers, children={"helper": ["helped"]}, tree=[]).run()
    first = min(
        (span for span in traces.ended if span.name.startswith("chat")),
        key=lambda span: span.start_time,
    )
    [retry] = first.events
    assert (retry.name, retry.attributes["amplifier.error_type"]) == (
        "provider:retry",
        "RateLimitError",
    )
    tool = traces.named("execute_tool task")
    assert [event.name for event in tool.events] == ["task:agent_spawned", "task:agent_completed"]
    assert tool.events[0].attributes["amplifier.agent"] == "helper"
    turn = traces.named("invoke_agent amplifier")
    assert [event.name for event in turn.events] == ["prompt:submit", "prompt:complete"]


async def test_failure_event_hides_message_by_default(
    traces,
):
    """The message is there if content is captured."""
    for captures in (False, True):
        traces.clear()
        config = {"capture_content": captures}
        scenario = Scenario(
            answers=[{"error": {"type": "AuthenticationError", "message": "who?"}}],
            tree=[],
            otel=config,
        )
        async with scenario.session() as session:
            with pytest.raises(LLMError):
                await session.execute("begin")
        [chat] = [span for span in traces.ended if span.name.startswith("chat")]
        [failed] = [event for event in chat.events if event.name == "exception"]
        message = {"exception.message": "who?"} if captures else {}
        assert failed.attributes == {
            "exception.type": "amplifier.errors.AuthenticationError",
            **message,
        }
        assert chat.instrumentation_scope.schema_url.startswith(
            "https://opentelemetry.io/schemas/1."
        )


async def test_events_can_be_left_out(traces):
    await Scenario(answers=["hello"], otel={"events": False}, tree=[]).run()
    assert [span.events for span in traces.ended] == [(), ()]


def everything(traces: Traces) -> str:
    return "\n".join(span.to_json() for span in traces.ended)


TALKATIVE = [
    {"thinking": "a thought", **calls(call("echo", text=f"the word is {SECRET}"))},
    calls(call("fail", text=f"broken by {SECRET} and a word")),
    {"text": f"the last word is {SECRET}"},
]


async def test_content_is_not_captured_unless_asked_for(traces):
    async with Scenario(answers=TALKATIVE, tree=[]).session() as session:
        await session.execute("a question")
    for text in ("a question", "a thought", "word", "hi", SECRET):
        assert f'"{text}' not in everything(traces)
        assert f"{text} " not in everything(traces)
    assert traces.named("execute_tool fail").status.description is None


async def test_captured_content_follows_conventions_without_secrets(traces):
    scenario = Scenario(
        answers=TALKATIVE,
        otel={"capture_content": True},
        loop_config={"system_prompt": "Be brief."},
        tree=[],
    )
    async with scenario.session() as session:
        await session.execute(f"a question with {SECRET}")
    assert SECRET not in everything(traces)
    chats = sorted(
        (span for span in traces.ended if span.name.startswith("chat")),
        key=lambda span: span.start_time,
    )
    assert json.loads(chats[0].attributes["gen_ai.system_instructions"]) == [
        {"type": "text", "content": "Be brief."}
    ]
    assert json.loads(chats[0].attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "a question with [REDACTED]"}]}
    ]
    [output] = json.loads(chats[0].attributes["gen_ai.output.messages"])
    assert [part["type"] for part in output["parts"]] == ["reasoning", "tool_call"]
    assert output["finish_reason"] == "tool_calls"
    answered = json.loads(chats[1].attributes["gen_ai.input.messages"])[-1]
    assert answered["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "hi"}]
    echo = traces.named("execute_tool echo")
    assert json.loads(echo.attributes["gen_ai.tool.call.arguments"]) == {
        "text": "the word is [REDACTED]"
    }
    assert json.loads(echo.attributes["gen_ai.tool.call.result"]) == "hi"
    assert "broken by [REDACTED]" in (traces.named("execute_tool fail").status.description or "")
    turn = traces.named("invoke_agent amplifier")
    assert "the last word is [REDACTED]" in turn.attributes["gen_ai.output.messages"]


async def test_captured_content_is_redacted_then_cut(traces):
    scenario = Scenario(
        answers=["x" * 500], otel={"capture_content": True, "max_content_chars": 100}, tree=[]
    )
    async with scenario.session() as session:
        await session.execute(f"{'x' * 30} {SECRET}")
    turn = traces.named("invoke_agent amplifier")
    assert SECRET[:8] not in everything(traces)
    assert len(turn.attributes["gen_ai.output.messages"]) == 100 + len("… (cut)")


# ── robustness ───────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_registered_without_opentelemetry(monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", None)
    async with Scenario(answers=["hello"], tree=[]).session() as session:
        registered = [
            name for names in session.coordinator.hooks.list_handlers().values() for name in names
        ]
        assert "hooks-otel" not in registered
        assert "hooks-otel" not in session.coordinator.session_state
        assert await session.execute("begin") == "hello"


async def test_failing_tracer_does_not_disturb_turn(traces, monkeypatch, caplog):
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the tracer is broken")

    scenario = Scenario(answers=[calls(call("echo")), "done"], tree=[])
    async with scenario.session() as session:
        spans, _ = session.coordinator.session_state["hooks-otel"]
        monkeypatch.setattr(spans, "_open", fail)
        assert await session.execute("begin") == "done"
    assert "a span or metric is lost" in caplog.text


async def test_loop_without_end_leaves_no_span(traces):
    async with Scenario(answers=["hello"], tree=[]).session() as session:
        await session.coordinator.hooks.emit("execution:start", {"prompt": "x"})
        await session.coordinator.hooks.emit("execution:start", {"prompt": "y"})
    assert [span.attributes["error.type"] for span in traces.ended] == ["abandoned", "abandoned"]


def test_every_catalogue_event_has_trace_role():
    assert set(TRACE_ROLES) == set(CATALOGUE)


def test_missing_package_names_its_extra():
    program = """
import sys, anyio
sys.modules["opentelemetry"] = None
from amplifier import AmplifierSession
plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True},
        "providers": ["provider-mock"], "hooks": ["hooks-otel"]}
async def main():
    async with AmplifierSession(plan):
        pass
try:
    anyio.run(main)
except BaseException as error:
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]
    while error.__cause__ is not None and "otel" not in str(error):
        error = error.__cause__
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "amplifier[otel]" in done.stdout, done.stdout + done.stderr
