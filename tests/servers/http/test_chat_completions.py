"""/v1/chat/completions: requests that carry the whole conversation."""

from __future__ import annotations

import anyio
import pytest

from amplifier.servers.http import Limits
from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import PLAN, Factory, serving

USER = {"role": "user", "content": "say hello"}
CHAT = "/v1/chat/completions"


async def test_answer_is_whole_or_in_pieces():
    async with serving() as client:
        whole = (await client.ask("POST", CHAT, {"messages": [USER]})).json()
        assert whole["choices"][0]["message"]["content"] == "hello "
        assert whole["usage"] == {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        exchange = client.chat("say one two", stream_options={"include_usage": True})
        assert (await exchange.start()).headers["content-type"].startswith("text/event-stream")
        *chunks, last, done = [chunk async for chunk in exchange.events()]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas == [{"role": "assistant", "content": "one "}, {"content": "two "}, {}]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert (last["choices"], last["usage"]["total_tokens"]) == ([], 15)
        assert done == "[DONE]"


async def test_conversation_comes_with_request():
    async with serving() as client:
        messages = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "first"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "x", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "done"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "history"},
        ]
        answer = (await client.ask("POST", CHAT, {"messages": messages})).json()
        assert answer["choices"][0]["message"]["content"] == "2 prompts so far "
        assert client.factory.requests[0].session_id is None


async def test_agent_tools_run_and_questions_are_denied(tmp_path):
    async with serving() as client:
        answer = await client.ask(
            "POST",
            CHAT,
            {
                "messages": [
                    {"role": "user", "content": call("risky", path=str(tmp_path / "trace"))}
                ]
            },
        )
        assert answer.json()["choices"][0]["message"]["content"].startswith("done: ")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages: expected a list"),
        ({"messages": []}, "messages: expected a list"),
        ({"messages": ["hi"]}, "messages[0]: expected an object"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": " "}]}, "no text"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last message"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "no sound"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "7", "content": "x"}, USER]},
            "which no call before it has",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "7", "function": {"arguments": "{}"}}],
                    },
                    USER,
                ]
            },
            "no result for the tool calls 7",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "7", "function": {"arguments": "["}}],
                    },
                    USER,
                ]
            },
            "function.arguments",
        ),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].name: is missing"),
        ({"messages": [USER], "n": 2}, "n: expected 1"),
    ],
)
async def test_wrong_request_is_answered_with_reason(body, message):
    async with serving() as client:
        answer = await client.ask("POST", CHAT, body)
        assert answer.status == 400
        assert message in answer.error
        assert client.factory.made == []


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_early_model_failure_has_status(is_streamed):
    async with serving() as client:
        body = {"messages": [{"role": "user", "content": "fail"}], "stream": is_streamed}
        answer = await client.ask("POST", CHAT, body)
        assert (answer.status, answer.error) == (429, "the quota is used up")


async def test_unusable_plan_has_status():
    factory = Factory(
        plan={
            **Factory().plan,
            "session": {"orchestrator": "loop-nowhere", "context": "context-simple"},
        }
    )
    async with serving(factory) as client:
        answer = await client.ask("POST", CHAT, {"messages": [USER]})
        assert answer.status == 503
        assert "loop-nowhere" in answer.error


@pytest.mark.parametrize("path", [CHAT, "/ag-ui"])
async def test_leaving_client_stops_turn(path, tmp_path):
    async with serving() as client:
        prompt = {
            "id": "1",
            "role": "user",
            "content": call("wait_for", path=str(tmp_path / "never")),
        }
        body = {
            "messages": [prompt],
            **({"stream": True} if path == CHAT else {"threadId": "a", "runId": "b"}),
        }
        exchange = client.begin("POST", path, body)
        await client.factory.until_tool_runs()
        exchange.leave()
        await exchange.ended.wait()
        assert client.factory.statuses() == ["cancelled"]
        assert client.factory.open() == 0
    assert (tmp_path / "never.cancelled").exists()


@pytest.mark.virtual_time
async def test_idle_client_counts_as_gone():
    async with serving() as client:
        exchange = client.chat(f"say {'word ' * 2000}")
        exchange.is_taking = anyio.Event()
        began = anyio.current_time()
        await exchange.ended.wait()
        assert anyio.current_time() - began == pytest.approx(60.0, abs=1)
        assert client.factory.open() == 0


async def test_slow_client_holds_turn():
    async with serving() as client:
        exchange = client.chat(f"say {'word ' * 2000}")
        exchange.is_taking = anyio.Event()
        await anyio.wait_all_tasks_blocked()
        assert client.factory.statuses() == ["running"]
        exchange.is_taking.set()
        await exchange.start()
        assert len([chunk async for chunk in exchange.events()]) == 2003


async def test_turns_above_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving(limits=Limits(turns=2)) as client:
        running = [client.chat("hang") for _ in range(2)]
        for exchange in running:
            await exchange.start()
        answer = await client.ask("POST", CHAT, {"messages": [USER]})
        assert (answer.status, answer.json()["error"]["code"]) == (429, "too_many_turns")
        assert "retry-after" in answer.headers
        running[0].leave()
        await running[0].ended.wait()
        assert (await client.ask("POST", CHAT, {"messages": [USER]})).status == 200


@pytest.mark.virtual_time
async def test_shutdown_lets_turns_end_then_stops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving(limits=Limits(shutdown_seconds=5)) as client:
        stuck = client.chat("hang")
        await stuck.start()
        stopped: list[float] = []

        async def note(event: str, data: dict[str, object]) -> None:
            stopped.append(anyio.current_time() - began)

        client.factory.made[-1].coordinator.hooks.register("cancel:completed", note)
        began = anyio.current_time()
        await client.app.shut_down()
        assert stopped == [pytest.approx(5, abs=1)]
        assert client.factory.statuses() == ["cancelled"]
        answer = await client.ask("POST", CHAT, {"messages": [USER]})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "stopping")


# ── bodies ──


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", {}, 400, "invalid_json"),
        (b"[]", {}, 400, "invalid_json"),
        (b"[" * 100_000, {}, 400, "invalid_json"),
        (b"\xff", {}, 400, "invalid_json"),
        (b"{}", {"content_type": "text/plain"}, 415, "unsupported_media_type"),
        (b"{}", {"content_type": None}, 415, "unsupported_media_type"),
        (b" " * 200_001, {}, 413, "body_too_large"),
        (b"{}", {"content_length": "200001"}, 413, "body_too_large"),
    ],
)
async def test_wrong_body_is_refused(body, headers, status, code):
    async with serving(limits=Limits(body_bytes=200_000)) as client:
        answer = await client.ask("POST", CHAT, body, **headers)
        assert (answer.status, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.virtual_time
async def test_stalled_body_is_abandoned():
    async with serving() as client:
        exchange = client.begin("POST", CHAT, b"")
        exchange._body = None
        assert (await exchange.start()).status == 408


@pytest.mark.parametrize("name", ["body_bytes", "sessions", "turns", "idle_seconds"])
@pytest.mark.parametrize("value", [0, -1, True])
def test_limit_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected a number greater than 0"):
        Limits(**{name: value})


async def test_turn_belongs_to_callers_trace(traces):
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    plan = {**PLAN, "hooks": ["hooks-otel"]}
    async with serving(Factory(plan)) as client:
        for kind, body in (
            (CHAT, {"messages": [USER]}),
            ("/v1/responses", {"model": "amplifier", "input": "say hello"}),
        ):
            traces.clear()
            answer = await client.ask("POST", kind, body, traceparent=f"00-{trace_id}-{span_id}-01")
            assert answer.status == 200
            turn = traces.named("invoke_agent amplifier")
            assert f"{turn.context.trace_id:032x}" == trace_id
            assert f"{turn.parent.span_id:016x}" == span_id
            assert (await client.ask("POST", kind, body)).status == 200
            assert f"{traces.ended[-1].context.trace_id:032x}" != trace_id
