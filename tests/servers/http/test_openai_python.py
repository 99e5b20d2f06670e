"""`amplifier serve` as a process on both backends, with the official SDK of OpenAI for Python."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest

from tests.cli._scripted_agent import call
from tests.servers.http._server import PATIENCE, Server, running

COLOUR = 'call final_result {"name": "rust", "red": 183}'
OSLO = 'call weather {"town": "Oslo"}'
TOWN: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"type": "string"}},
    "required": ["town"],
    "additionalProperties": False,
}


class Colour(pydantic.BaseModel):
    name: str
    red: int


def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.address}/v1", api_key=server.token, max_retries=0, timeout=PATIENCE
    )


def test_openai_sdk_streams_turns_with_tools(server, workdir):
    (workdir / "gate").touch()
    kept = sorted(server.home.glob("sessions/*"))
    with openai_client(server) as client:
        (model,) = client.models.list().data
        ask: list[Any] = [{"role": "user", "content": call("wait_for", path=str(workdir / "gate"))}]
        with client.chat.completions.create(
            model=model.id, messages=ask, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        assert "".join(text or "" for text in texts) == "done: it is there "
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 30
        conversation: list[Any] = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "say one"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "history"},
        ]
        whole = client.chat.completions.create(model=model.id, messages=conversation)
        assert whole.choices[0].message.content == "2 prompts so far "
        assert whole.choices[0].finish_reason == "stop"
    assert (
        sorted(server.home.glob("sessions/*")) == kept
    )  # a conversation that comes with its request is not kept


def test_openai_sdk_gets_own_error_classes(server):
    ask: list[Any] = [{"role": "user", "content": "say hello"}]
    fail: list[Any] = [{"role": "user", "content": "fail"}]
    tools: list[Any] = [{"type": "function", "function": {"name": "risky", "parameters": {}}}]
    with openai_client(server) as client:
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            client.chat.completions.create(model="gpt-9", messages=ask)
        with pytest.raises(openai.BadRequestError, match="its own tool 'risky'"):
            client.chat.completions.create(model="amplifier", messages=ask, tools=tools)
        with pytest.raises(openai.RateLimitError, match="the quota is used up"):
            client.chat.completions.create(model="amplifier", messages=fail, stream=True)


@pytest.mark.slow
def test_leaving_openai_sdk_stops_turn(backend, home, workdir, plan):
    ask: list[Any] = [{"role": "user", "content": "hang"}]
    with (
        running(backend, plan, home, workdir, "--max-turns", "1") as server,
        openai_client(server) as client,
    ):
        for _ in range(3):
            # With one place for turns, the next one runs only if the last one has ended.
            stream = _when_there_is_room(client, ask)
            assert next(iter(stream)).choices[0].delta.content == "hanging "
            stream.close()


def _when_there_is_room(client: openai.OpenAI, messages: list[Any]) -> Any:
    for _ in range(1000):
        try:
            return client.chat.completions.create(model="amplifier", messages=messages, stream=True)
        except openai.RateLimitError:
            continue
    raise AssertionError("the turn of a client that left still runs")


def test_openai_sdk_parses_typed_answers(server):
    asked: list[Any] = [{"role": "user", "content": COLOUR}]
    with openai_client(server) as client:
        parsed = client.chat.completions.parse(
            model="amplifier", messages=asked, response_format=Colour
        )
        assert parsed.choices[0].message.parsed == Colour(name="rust", red=183)
        with client.chat.completions.stream(
            model="amplifier", messages=asked, response_format=Colour
        ) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == Colour(
                name="rust", red=183
            )
        response = client.responses.parse(model="amplifier", input=COLOUR, text_format=Colour)
        assert response.output_parsed == Colour(name="rust", red=183)
        cut: list[Any] = [{"role": "user", "content": "end length cut"}]
        assert (
            client.chat.completions.create(model="amplifier", messages=cut).choices[0].finish_reason
            == "length"
        )


def test_openai_sdk_runs_own_tools(server):
    tools: list[Any] = [
        {"type": "function", "function": {"name": "weather", "parameters": TOWN, "strict": True}}
    ]
    messages: list[Any] = [{"role": "user", "content": OSLO}]
    with openai_client(server) as client:
        with client.chat.completions.stream(
            model="amplifier", messages=messages, tools=tools
        ) as stream:
            choice = stream.get_final_completion().choices[0]
        assert choice.finish_reason == "tool_calls"
        (made,) = choice.message.tool_calls or []
        assert made.function.parsed_arguments == {"town": "Oslo"}
        messages += [choice.message, {"role": "tool", "tool_call_id": made.id, "content": "rain"}]
        found = client.chat.completions.create(model="amplifier", messages=messages, tools=tools)
        assert found.choices[0].message.content == "done: rain "


def test_openai_sdk_continues_responses(server):
    tools: list[Any] = [{"type": "function", "name": "weather", "parameters": TOWN, "strict": True}]
    with openai_client(server) as client:
        first = client.responses.create(model="amplifier", input="history")
        with client.responses.stream(
            model="amplifier", input="history", previous_response_id=first.id
        ) as stream:
            deltas = [each.delta for each in stream if each.type == "response.output_text.delta"]
            second = stream.get_final_response()
        assert "".join(deltas) == second.output_text == "2 prompts so far "
        asked = client.responses.create(model="amplifier", input=OSLO, tools=tools)
        (made,) = asked.output
        assert made.type == "function_call"
        result: list[Any] = [
            {"type": "function_call_output", "call_id": made.call_id, "output": "rain"}
        ]
        found = client.responses.create(
            model="amplifier", input=result, tools=tools, previous_response_id=asked.id
        )
        assert found.output_text == "done: rain "
        assert found.usage is not None
        assert found.usage.input_tokens_details.cached_tokens == 4
        client.responses.delete(found.id)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="amplifier", input="hi", previous_response_id=found.id)
        assert refused.value.param == "previous_response_id"


def test_openai_sdk_gets_name_of_refused_parameter(server):
    asked: list[Any] = [{"role": "user", "content": "say hello"}]
    with openai_client(server) as client:
        assert client.models.retrieve("amplifier").id == "amplifier"
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="amplifier", messages=asked, seed=7)
        assert (refused.value.param, refused.value.code) == ("seed", "invalid_request")
        limited: list[Any] = [{"role": "user", "content": "limit 3000"}]
        with pytest.raises(openai.RateLimitError) as limit:
            client.chat.completions.create(model="amplifier", messages=limited)
        assert limit.value.response.headers["retry-after"] == "3000"
