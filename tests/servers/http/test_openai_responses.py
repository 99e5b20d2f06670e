"""/v1/responses: conversations that come with the request, or go on with a response that is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import Client, serving
from tests.servers.http.test_openai_parameters import COLOUR, PIXEL

RESPONSES = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
}


async def created(client: Client, given: Any, **more: Any) -> dict[str, Any]:
    answer = await client.ask("POST", RESPONSES, {"input": given, **more})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


async def streamed(client: Client, given: Any, **more: Any) -> list[dict[str, Any]]:
    exchange = client.begin("POST", RESPONSES, {"input": given, "stream": True, **more})
    assert (await exchange.start()).status == 200
    return [each async for each in exchange.events()]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [each["type"].removeprefix("response.") for each in events]


async def test_answer_is_whole_or_in_pieces():
    async with serving() as client:
        whole = await created(client, "say one two")
        assert (whole["status"], text_of(whole)) == ("completed", "one two ")
        assert whole["usage"] == {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
        }
        events = await streamed(client, "say one two")
        begin = ["created", "in_progress", "output_item.added", "content_part.added"]
        end = ["output_text.done", "content_part.done", "output_item.done", "completed"]
        assert kinds(events) == [*begin, "output_text.delta", "output_text.delta", *end]
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        assert text_of(events[-1]["response"]) == "one two "


async def test_conversation_continues_with_kept_response():
    async with serving() as client:
        first = await created(client, "history", instructions="be brief")
        second = await created(client, "history", previous_response_id=first["id"])
        assert (text_of(first), text_of(second)) == ("1 prompts so far ", "2 prompts so far ")
        last = (await streamed(client, "history", previous_response_id=second["id"]))[-1][
            "response"
        ]
        assert (text_of(last), last["previous_response_id"]) == ("3 prompts so far ", second["id"])
        again = await created(
            client, "history", previous_response_id=first["id"]
        )  # from there, another way
        assert text_of(again) == "2 prompts so far "
        items = [
            {"role": "user", "content": "hi"},
            *again["output"],
            {"type": "message", "role": "user", "content": "history"},
        ]
        assert text_of(await created(client, items)) == "2 prompts so far "


async def test_unkept_response_is_not_found():
    async with serving() as client:
        unkept = await created(client, "say hello", store=False)
        kept = await created(client, "say hello")
        assert (await client.ask("DELETE", f"{RESPONSES}/{kept['id']}")).json()["deleted"] is True
        assert (await client.ask("DELETE", f"{RESPONSES}/{kept['id']}")).status == 404
        for name in (unkept["id"], kept["id"], "resp_never"):
            assert (await client.ask("GET", f"{RESPONSES}/{name}")).status == 404
            answer = await client.ask(
                "POST", RESPONSES, {"input": "hi", "previous_response_id": name}
            )
            assert (answer.status, answer.json()["error"]["param"]) == (400, "previous_response_id")


@pytest.mark.parametrize("is_kept", [True, False])
async def test_client_tool_calls_end_response(is_kept, tmp_path):
    (tmp_path / "gate").touch()
    inputs = [{"tool": "weather", "town": "Oslo"}, {"path": str(tmp_path / "gate")}]
    prompt = "both " + " ".join(json.dumps(each, separators=(",", ":")) for each in inputs)
    async with serving() as client:
        events = await streamed(client, prompt, tools=[WEATHER], store=is_kept)
        assert kinds(events)[2:] == [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
        response = events[-1]["response"]
        (made,) = response["output"]
        assert (made["type"], made["name"], json.loads(made["arguments"])) == (
            "function_call",
            "weather",
            {"town": "Oslo"},
        )
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
        before = [{"role": "user", "content": prompt}, made]
        more = {"previous_response_id": response["id"]} if is_kept else {}
        found = await created(
            client, [result] if is_kept else [*before, result], tools=[WEATHER], **more
        )
        # The model goes on with the results of both tools; it shows the last one, which is the agent's own.
        assert text_of(found) == "done: it is there "


async def test_results_must_fit_waiting_calls():
    async with serving() as client:
        waiting = await created(client, call("weather", town="Oslo"), tools=[WEATHER])
        unknown = {"type": "function_call_output", "call_id": "call-7", "output": "rain"}
        for given, problem in (
            ("hi", "no output for call-1"),
            ([unknown], "no output for call-1"),
            ([], "expected a list"),
        ):
            body = {"input": given, "previous_response_id": waiting["id"]}
            answer = await client.ask("POST", RESPONSES, body)
            assert (answer.status, problem in answer.error) == (400, True)
        (made,) = waiting["output"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
        message = {"role": "user", "content": "history"}
        found = await created(client, [result, message], previous_response_id=waiting["id"])
        assert text_of(found) == "2 prompts so far "


async def test_answer_fits_requested_schema():
    wanted = {"format": {"type": "json_schema", "name": "colour", "schema": COLOUR, "strict": True}}
    async with serving() as client:
        prompt = call("final_result", name="rust", red=183)
        whole = await created(client, prompt, text=wanted)
        assert json.loads(text_of(whole)) == {"name": "rust", "red": 183}
        last = (await streamed(client, prompt, text=wanted))[-1]["response"]
        assert json.loads(text_of(last)) == {"name": "rust", "red": 183}


async def test_finish_reason_of_model_is_passed_on():
    async with serving() as client:
        cut = await created(client, "end length cut")
        assert (cut["status"], cut["incomplete_details"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
        )
        assert kinds(await streamed(client, "end refusal no"))[-1] == "incomplete"


async def test_parameters_reach_provider():
    given = {
        "temperature": 0.5,
        "max_output_tokens": 7,
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    async with serving() as client:
        found = json.loads(text_of(await created(client, "settings", **given)))
        assert (found["temperature"], found["max_output_tokens"], found["reasoning_effort"]) == (
            0.5,
            7,
            "low",
        )


async def test_images_reach_model():
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
    parts = [{"type": "input_text", "text": "what is it?"}, image]
    async with serving() as client:
        assert text_of(await created(client, [{"role": "user", "content": parts}])) == "text image "


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "input[0].content[0]",
        ),
        ({"input": "hi", "background": True, "store": False}, "background"),
        ({"input": "hi", "conversation": "conv_1"}, "conversation"),
        ({"input": "hi", "truncation": "auto"}, "truncation"),
        ({"input": "hi", "include": ["reasoning.encrypted_content"]}, "include"),
        ({"input": "hi", "text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"input": "hi", "reasoning": {"effort": "heroic"}}, "reasoning.effort"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "hi", "messages": []}, "messages"),
    ],
)
async def test_unsupported_parameter_is_refused_by_name(given, param):
    async with serving() as client:
        answer = await client.ask("POST", RESPONSES, given)
        assert (answer.status, answer.json()["error"]["param"]) == (400, param)
        assert client.factory.made == []


async def test_failure_is_status_or_event():
    """It is a status before the first piece and an event after it."""
    async with serving() as client:
        answer = await client.ask("POST", RESPONSES, {"input": "fail", "stream": True})
        assert (answer.status, answer.error) == (429, "the quota is used up")
        last = (await streamed(client, "cut one two"))[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"] == {"code": "server_error", "message": "the line was cut"}
        assert text_of(last["response"]) == "one two "
