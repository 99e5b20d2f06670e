"""Answers and streams of ``/v1`` of every kind, against the types of OpenAI's SDK, read strictly.

The client that these tests share with tests/servers/http checks each answer and each event.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import serving
from tests.servers.http._openai_types import openai_problems

pytestmark = pytest.mark.slow

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string"}},
    "required": ["town"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "parameters": SCHEMA, "strict": True}
FORMAT = {"name": "town", "schema": SCHEMA, "strict": True}
OSLO = call("weather", town="Oslo")
PROMPTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "text": ("say one two", {}, {}),
    "nothing": ("say ", {}, {}),
    "a tool of the agent": (call("crash"), {}, {}),
    "a tool of the client": (
        OSLO,
        {"tools": [{"type": "function", "function": FUNCTION}]},
        {"tools": [{"type": "function", **FUNCTION}]},
    ),
    "a typed answer": (
        call("final_result", town="Oslo"),
        {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
        {"text": {"format": {"type": "json_schema", **FORMAT}}},
    ),
    "a limit that is reached": ("end length cut", {}, {}),
    "a refusal": ("end refusal no", {}, {}),
    "settings": (
        "settings",
        {"temperature": 0.5, "max_tokens": 7},
        {"temperature": 0.5, "max_output_tokens": 7},
    ),
    "a failure": ("fail", {}, {}),
    "a stream that breaks off": ("cut one", {}, {}),
}


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_answer_has_sdk_types(name, is_streamed):
    prompt, for_chat, for_responses = PROMPTS[name]
    chat = {"messages": [{"role": "user", "content": prompt}], "stream": is_streamed, **for_chat}
    if is_streamed:
        chat["stream_options"] = {"include_usage": True}
    async with serving() as client:
        for path, body in (
            (CHAT, chat),
            (RESPONSES, {"input": prompt, "stream": is_streamed, **for_responses}),
        ):
            if not is_streamed:
                await client.ask("POST", path, body)
                continue
            exchange = client.begin("POST", path, body)
            head = await exchange.start()
            if head.headers["content-type"].startswith("text/event-stream"):
                assert [event async for event in exchange.events()]
            else:
                assert openai_problems(json.loads(await exchange.rest())) == []
            await exchange.ended.wait()


async def test_models_and_errors_have_sdk_types():
    async with serving() as client:
        assert (await client.ask("GET", "/v1/models")).status == 200
        assert (await client.ask("GET", "/v1/models/amplifier")).status == 200
        for path in (CHAT, RESPONSES):
            for body in ({}, {"model": "nowhere", "messages": [], "input": "x"}, {"seed": 7}):
                assert (await client.ask("POST", path, body)).status >= 400
        kept = (await client.ask("POST", RESPONSES, {"input": "say one"})).json()
        assert (await client.ask("GET", f"{RESPONSES}/{kept['id']}")).json()["id"] == kept["id"]
        assert (await client.ask("DELETE", f"{RESPONSES}/{kept['id']}")).status == 200


def test_deviations_are_found():
    usage = {"prompt_tokens": "1", "completion_tokens": 1, "total_tokens": 2}
    choice = {
        "index": 0,
        "finish_reason": "done",
        "message": {"role": "assistant", "content": "x", "mood": "good"},
    }
    answer = {
        "id": "a",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    assert {problem.partition(":")[0] for problem in openai_problems(answer)} == {
        "choices.0.finish_reason",
        "usage.prompt_tokens",
    }
    choice["finish_reason"], usage["prompt_tokens"] = "stop", 1
    assert openai_problems(answer) == [
        "chat.completion.choices[0].message.mood is not a member of the type"
    ]
    assert openai_problems({"error": {"message": 7}})[0].startswith("message: ")
    assert openai_problems({"type": "response.walked"})
