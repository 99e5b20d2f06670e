"""/v1/chat/completions: what a client sends besides messages is honoured, or refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import Client, Factory, serving

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "say hello"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "red": {"type": "integer"}},
    "required": ["name", "red"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}},
            "required": ["town"],
        },
    },
}


def asking(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


async def answer_to(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """The choice of a completion; the streamed form has to say the same."""
    answer = await client.ask("POST", CHAT, body)
    assert answer.status == 200, answer.body
    choice: dict[str, Any] = answer.json()["choices"][0]
    exchange = client.begin("POST", CHAT, {**body, "stream": True})
    await exchange.start()
    deltas: list[dict[str, Any]] = []
    async for chunk in exchange.events():
        if chunk != "[DONE]":
            deltas.append(chunk["choices"][0])
    content = "".join(each["delta"].get("content") or "" for each in deltas)
    calls = [
        {name: value for name, value in made.items() if name != "index"}
        for each in deltas
        for made in each["delta"].get("tool_calls", ())
    ]
    message = choice["message"]
    assert (content, calls) == (message["content"] or "", message.get("tool_calls", []))
    assert deltas[-1]["finish_reason"] == choice["finish_reason"]
    return choice


# ── parameters ──


async def test_parameters_reach_provider():
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "stop": "END",
        "reasoning_effort": "low",
    }
    async with serving() as client:
        choice = await answer_to(
            client, asking("settings", **given, user="anna", metadata={"trace": "7"})
        )
        assert json.loads(choice["message"]["content"]) == {
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 7,
            "stop": ["END"],
            "reasoning_effort": "low",
            "metadata": {"trace": "7", "user_id": "anna"},
            "tool_choice": None,
        }
        both = asking("settings", max_tokens=7, max_completion_tokens=9, stop=["a", "b"])
        found = json.loads((await answer_to(client, both))["message"]["content"])
        assert (found["max_output_tokens"], found["stop"]) == (9, ["a", "b"])


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"seed": 7}, "seed"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"reasoning_effort": "heroic"}, "reasoning_effort"),
        ({"n": 2}, "n"),
        ({"functions": [{"name": "x"}]}, "functions"),
        ({"top_k": 40}, "top_k"),
        ({"stream_options": {"include_everything": True}}, "stream_options.include_everything"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.name"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": 7}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": 7}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_unsupported_parameter_is_refused_by_name(given, param):
    async with serving() as client:
        answer = await client.ask("POST", CHAT, {"messages": [USER], **given})
        assert answer.status == 400
        error = answer.json()["error"]
        assert error["param"] == param
        assert param in error["message"]
        assert client.factory.made == []


async def test_ineffective_parameter_is_accepted():
    neutral = {
        "n": 1,
        "frequency_penalty": 0,
        "logprobs": False,
        "store": False,
        "seed": None,
        "modalities": ["text"],
    }
    async with serving() as client:
        assert (await client.ask("POST", CHAT, {"messages": [USER], **neutral})).status == 200


async def test_parameter_unknown_to_loop_is_error():
    class Loop:
        async def execute(self, prompt: str, **_: Any) -> str:
            return "whatever"

    async def mount(coordinator: Any, config: Any) -> Loop:
        return Loop()

    async with serving(Factory(plan={**Factory().plan}, more={"loop-own": mount})) as client:
        client.factory.plan["session"] = {"orchestrator": "loop-own", "context": "context-simple"}
        assert (await client.ask("POST", CHAT, {"messages": [USER]})).status == 200
        answer = await client.ask("POST", CHAT, {"messages": [USER], "temperature": 0})
        assert (answer.status, "did not get temperature" in answer.error) == (503, True)


# ── how it ends ──


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("refusal", "content_filter"),
    ],
)
async def test_finish_reason_of_model_is_passed_on(reason, finish):
    async with serving() as client:
        assert (await answer_to(client, asking(f"end {reason} cut")))["finish_reason"] == finish


async def test_turn_stopped_by_loop_reports_length(tmp_path):
    plan = {
        **Factory().plan,
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    }
    plan["orchestrator"] = {"config": {"max_iterations": 1}}
    async with serving(Factory(plan=plan)) as client:
        choice = await answer_to(client, asking(call("nowhere")))
        assert choice["finish_reason"] == "length"


@pytest.mark.virtual_time
async def test_rate_limit_has_retry_delay():
    async with serving() as client:
        answer = await client.ask("POST", CHAT, asking("limit 90.5"))
        assert (answer.status, answer.json()["error"]["code"]) == (429, "model_rate_limited")
        assert answer.headers["retry-after"] == "91"
        answer = await client.ask("POST", CHAT, asking("fail"))
        assert (answer.status, answer.json()["error"]["code"]) == (429, "insufficient_quota")
        assert "retry-after" not in answer.headers  # waiting does not help


async def test_one_model_is_described():
    async with serving() as client:
        listed = (await client.ask("GET", "/v1/models")).json()["data"]
        assert listed == [(await client.ask("GET", "/v1/models/amplifier")).json()]
        answer = await client.ask("GET", "/v1/models/openai/gpt-9")
        assert (answer.status, answer.json()["error"]["param"]) == (404, "model")


# ── the form of the answer ──


async def test_answer_fits_requested_schema():
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "colour", "schema": COLOUR, "strict": True},
    }
    async with serving() as client:
        body = asking(call("final_result", name="rust", red=183), response_format=wanted)
        choice = await answer_to(client, body)
        assert json.loads(choice["message"]["content"]) == {"name": "rust", "red": 183}
        assert choice["finish_reason"] == "stop"
        body = asking('say {"any":"thing"}', response_format={"type": "json_object"})
        assert json.loads((await answer_to(client, body))["message"]["content"]) == {"any": "thing"}
        body = asking("say plain", response_format={"type": "text"})
        assert (await answer_to(client, body))["message"]["content"] == "plain "


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_never_fitting_answer_is_error(is_streamed):
    wanted = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}
    async with serving() as client:
        answer = await client.ask(
            "POST", CHAT, asking("say red", response_format=wanted, stream=is_streamed)
        )
        assert (answer.status, answer.json()["error"]["code"]) == (502, "answer_does_not_fit")


async def test_truncated_typed_answer_is_reported():
    plan = {**Factory().plan, "orchestrator": {"config": {"answer_attempts": 1}}}
    async with serving(Factory(plan=plan)) as client:
        body = asking('end length {"na', response_format={"type": "json_object"})
        choice = (await client.ask("POST", CHAT, body)).json()["choices"][0]
        assert choice["finish_reason"] == "length"


# ── images and files ──


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"},
        },
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        {
            "type": "file",
            "file": {"filename": "a.png", "file_data": f"data:image/png;base64,{PIXEL}"},
        },
        {"type": "binary", "mimeType": "image/png", "data": PIXEL},
        {"type": "image", "source": {"type": "data", "value": PIXEL, "mimeType": "image/png"}},
        {"type": "image", "source": {"type": "url", "value": "https://example.org/a.png"}},
    ],
)
async def test_images_reach_model(part):
    async with serving() as client:
        choice = await answer_to(client, asking([{"type": "text", "text": "what is it?"}, part]))
        assert choice["message"]["content"] == "text image "
        before = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "a pixel"}]
        answer = await client.ask(
            "POST", CHAT, {"messages": [*before, {"role": "user", "content": "history"}]}
        )
        assert answer.json()["choices"][0]["message"]["content"] == "2 prompts so far "


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,raw"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": 7},
        {"type": "file", "file": {"file_id": "file-7"}},
        {"type": "file", "file": {"file_data": "!"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ],
)
async def test_wrong_part_is_refused(part):
    async with serving() as client:
        answer = await client.ask("POST", CHAT, asking([part]))
        assert answer.status == 400
        assert answer.json()["error"]["param"].startswith("messages[0].content[0]")


# ── the client's tools ──


async def test_client_tool_call_ends_response():
    """Its result comes with the next request."""
    async with serving() as client:
        body = asking(call("weather", town="Oslo"), tools=[WEATHER])
        choice = await answer_to(client, body)
        assert choice["finish_reason"] == "tool_calls"
        (made,) = choice["message"]["tool_calls"]
        assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == (
            "weather",
            {"town": "Oslo"},
        )
        result = {"role": "tool", "tool_call_id": made["id"], "content": "rain"}
        messages = [*body["messages"], choice["message"], result]
        choice = await answer_to(client, {"messages": messages, "tools": [WEATHER]})
        assert (choice["message"]["content"], choice["finish_reason"]) == ("done: rain ", "stop")
        assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("is_last", [True, False])
async def test_agent_and_client_tools_run_together(tmp_path, is_last):
    (tmp_path / "gate").touch()
    inputs = [{"tool": "weather", "town": "Oslo"}, {"path": str(tmp_path / "gate")}][
        :: 1 if is_last else -1
    ]
    body = asking(
        "both " + " ".join(json.dumps(each, separators=(",", ":")) for each in inputs),
        tools=[WEATHER],
    )
    async with serving() as client:
        choice = (await client.ask("POST", CHAT, body)).json()["choices"][0]
        (made,) = choice["message"]["tool_calls"]
        assert made["function"]["name"] == "weather"
        result = {"role": "tool", "tool_call_id": made["id"], "content": "rain"}
        messages = [*body["messages"], choice["message"], result]
        answer = await client.ask("POST", CHAT, {"messages": messages, "tools": [WEATHER]})
        # The model goes on with the result of the agent's tool, which the client has not seen; it shows the last result.
        expected = "done: it is there " if is_last else "done: rain "
        assert answer.json()["choices"][0]["message"]["content"] == expected
        # A server that does not know the conversation (any more) goes on with what the client has.
        messages[0] = {"role": "user", "content": "something else"}
        answer = await client.ask("POST", CHAT, {"messages": messages, "tools": [WEATHER]})
        assert answer.json()["choices"][0]["message"]["content"] == "done: rain "


async def test_parallel_and_single_calls():
    inputs = [{"tool": "weather", "town": town} for town in ("Oslo", "Rome")]
    prompt = "both " + " ".join(json.dumps(each, separators=(",", ":")) for each in inputs)
    async with serving() as client:
        choice = await answer_to(client, asking(prompt, tools=[WEATHER]))
        towns = [
            json.loads(made["function"]["arguments"])["town"]
            for made in choice["message"]["tool_calls"]
        ]
        assert towns == ["Oslo", "Rome"]
        choice = await answer_to(client, asking(prompt, tools=[WEATHER], parallel_tool_calls=False))
        assert len(choice["message"]["tool_calls"]) == 1


async def test_misfit_call_is_not_passed_to_client():
    async with serving() as client:
        choice = await answer_to(client, asking(call("weather"), tools=[WEATHER]))
        assert choice["finish_reason"] == "stop"
        assert "do not fit" in choice["message"]["content"]


async def test_tool_choice_reaches_model():
    chosen = {"type": "function", "function": {"name": "weather"}}
    async with serving() as client:
        for given in (chosen, "required"):
            choice = await answer_to(client, asking("settings", tools=[WEATHER], tool_choice=given))
            assert json.loads(choice["message"]["content"])["tool_choice"] == chosen
        choice = await answer_to(
            client, asking(call("weather", town="Oslo"), tools=[WEATHER], tool_choice="none")
        )
        assert "there is no tool named 'weather'" in choice["message"]["content"]


async def test_typed_answer_may_use_client_tools():
    body = asking(
        call("weather", town="Oslo"), tools=[WEATHER], response_format={"type": "json_object"}
    )
    async with serving() as client:
        assert (await answer_to(client, body))["finish_reason"] == "tool_calls"


async def test_agent_tool_name_is_refused():
    taken = {"type": "function", "function": {"name": "risky"}}
    async with serving() as client:
        answer = await client.ask("POST", CHAT, {"messages": [USER], "tools": [taken]})
        assert (answer.status, answer.json()["error"]["param"]) == (400, "tools")
        assert "its own tool 'risky'" in answer.error


async def test_results_without_prompt_or_call_are_refused():
    result = {"role": "tool", "tool_call_id": "7", "content": "x"}
    async with serving() as client:
        for messages in ([result], [USER, result]):
            answer = await client.ask("POST", CHAT, {"messages": messages, "tools": [WEATHER]})
            assert (answer.status, answer.json()["error"]["param"]) == (400, "messages")
