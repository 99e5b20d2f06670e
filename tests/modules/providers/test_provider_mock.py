"""provider-mock: a script in JSON, streamed like the responses of a model, and the provider contract."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anyio
import pytest

from amplifier.errors import (
    InvalidRequestError,
    LLMError,
    PlanError,
    ProviderUnavailableError,
    RateLimitError,
    StreamError,
)
from amplifier.models import (
    ChatRequest,
    Message,
    StreamChunk,
)
from amplifier.modules.providers import mock as provider_mock
from tests.modules.providers.services import MountedProvider


async def opened(**config: Any) -> MountedProvider:
    return await MountedProvider.open(provider_mock, **config)


REQUEST = ChatRequest(messages=[Message(role="user", content="hello")])


# ── the contract ─────────────────────────────────────────────────────────────────────────────────


async def test_call_emits_usage_without_content():
    booth = await opened(
        responses=[{"text": "x", "usage": {"input_tokens": 3, "cache_read_tokens": 2}}]
    )
    await booth.ask("my password is hunter2")
    assert [name for name, _ in booth.recorder.events] == ["llm:request", "llm:response"]
    asked, answered = booth.payloads("llm:request")[0], booth.payloads("llm:response")[0]
    assert (asked["provider"], asked["model"], asked["message_count"]) == ("mock", "mock-model", 1)
    assert answered["usage"] == {
        "input_tokens": 3,
        "output_tokens": 0,
        "cache_read_tokens": 2,
        "cost_usd": None,
    }
    assert answered["status"] == "ok"
    assert "hunter2" not in repr((booth.recorder.events, vars(booth.provider)))


async def test_debug_events_carry_request_and_response():
    booth = await opened(debug=True)
    await booth.ask("seen")
    assert booth.payloads("llm:request")[0]["raw"]["messages"][0]["content"] == "seen"
    assert booth.payloads("llm:response")[0]["raw"]["content"]


# ── the script ───────────────────────────────────────────────────────────────────────────────────


async def test_texts_repeat_in_order():
    booth = await opened(responses=["one", "two"])
    assert (
        " ".join([(await booth.ask()).content[0].text for _ in range(5)]) == "one two one two one"
    )


async def test_exhausted_script_can_refuse():
    booth = await opened(responses=["one"], when_exhausted="error")
    await booth.ask()
    with pytest.raises(
        InvalidRequestError, match="all 1 scripted responses are used up; add one to `responses`"
    ) as caught:
        await booth.ask()
    assert not caught.value.retryable
    assert booth.payloads("llm:response")[-1]["status"] == "error"


async def test_answer_has_all_scripted_parts():
    step = {
        "thinking": "hm",
        "signature": "seal",
        "text": "let me see",
        "tool_calls": [{"name": "a", "arguments": {"n": 1}}, {"name": "b", "id": "mine"}],
        "usage": {"input_tokens": 7, "output_tokens": 5, "cost_usd": "0.25"},
        "finish_reason": "odd",
    }
    response = await (await opened(responses=[step])).ask()
    assert [block.type for block in response.content] == [
        "thinking",
        "text",
        "tool_call",
        "tool_call",
    ]
    assert response.content[0].signature == "seal"
    assert [call.id for call in response.tool_calls or ()] == ["mock_1_2", "mine"]
    assert response.usage is not None
    assert (response.usage.total_tokens, response.usage.cost_usd) == (12, Decimal("0.25"))
    assert response.finish_reason == "odd"


async def test_call_ids_are_fresh_when_script_repeats():
    booth = await opened(responses=[{"tool_calls": [{"name": "t", "id": "same"}, {"name": "t"}]}])
    messages = [Message(role="user", content="go")]
    ids: list[str] = []
    for _ in range(4):
        response = await booth.answer(ChatRequest(messages=messages))
        ids += [call.id for call in response.tool_calls or ()]
        messages.append(Message(role="assistant", content=response.content))
    assert len(set(ids)) == len(ids) == 8
    resumed = await opened(responses=[{"tool_calls": [{"name": "t"}]}])
    response = await resumed.answer(ChatRequest(messages=messages))
    assert response.tool_calls is not None
    assert response.tool_calls[0].id not in ids


@pytest.mark.parametrize(
    ("error", "kind", "fields"),
    [
        ("broken", LLMError, {"retryable": False}),
        (
            {"type": "RateLimitError", "retry_after": 2.5},
            RateLimitError,
            {"retryable": True, "retry_after": 2.5},
        ),
        (
            {"type": "ProviderUnavailableError", "retryable": False},
            ProviderUnavailableError,
            {"retryable": False},
        ),
        ({"message": "x", "status_code": 418}, LLMError, {"status_code": 418}),
    ],
)
async def test_step_can_be_mapped_error(error, kind, fields):
    booth = await opened(responses=[{"error": error}, "after"])
    with pytest.raises(kind) as caught:
        await booth.ask()
    assert type(caught.value) is kind
    assert {name: getattr(caught.value, name) for name in fields} == fields
    assert caught.value.provider == "mock"
    assert (await booth.ask()).content[0].text == "after"


async def test_stream_can_end_after_some_words():
    booth = await opened(responses=[{"chunks": ["one ", "two"], "error": {"type": "StreamError"}}])
    heard: list[str] = []
    with pytest.raises(StreamError):  # noqa: PT012 - what was heard before counts
        async with booth.provider.stream(REQUEST) as chunks:
            async for chunk in chunks:
                heard.append(chunk.text or chunk.kind)
    assert heard == ["block_start", "one ", "two"]


@pytest.mark.virtual_time
async def test_delays_before_answer_and_pieces():
    booth = await opened(responses=[{"text": "a b c", "delay": 10}], stream_delay_ms=500)
    start = anyio.current_time()
    await booth.ask()
    assert anyio.current_time() - start == pytest.approx(11.5)
    assert booth.payloads("llm:response")[0]["duration_ms"] == pytest.approx(11500, abs=2)


# ── streaming ────────────────────────────────────────────────────────────────────────────────────


async def test_pieces_are_words_or_as_scripted():
    def texts(chunks: list[StreamChunk]) -> list[str]:
        return [chunk.text for chunk in chunks if chunk.text]

    assert texts(await (await opened(responses=["a  b c"])).chunks(REQUEST)) == ["a  ", "b ", "c"]
    assert texts(await (await opened(responses=[{"chunks": ["a ", "b c"]}])).chunks(REQUEST)) == [
        "a ",
        "b c",
    ]


async def test_concurrent_requests_get_own_steps():
    booth = await opened(responses=[{"text": str(n), "delay": 0.01 * (5 - n)} for n in range(5)])
    answers: list[str] = []

    async def ask() -> None:
        answers.append((await booth.ask()).content[0].text)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
    assert sorted(answers) == list("01234")


# ── config ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"responses": []}, r"\$\.responses: expected a list of at least 1 texts and objects"),
        ({"responses": [1]}, r"\$\.responses\[0\]: expected text or an object"),
        ({"responses": [{}]}, r"\$\.responses\[0\]: expected text or an object"),
        (
            {"responses": ["a", {"txt": ""}]},
            r"\$\.responses\[1\]\.txt: unknown key; did you mean 'text'",
        ),
        (
            {"responses": [{"tool_calls": [{"nme": "x"}]}]},
            r"tool_calls\[0\]\.nme: unknown key; did you mean 'name'",
        ),
        (
            {"responses": [{"error": {"type": "Oops"}}]},
            r"\.error\.type: expected one of 'LLMError', 'RateLimitError'",
        ),
        (
            {"responses": [{"error": {"retryable": 1}}]},
            r"\.error\.retryable: expected true or false, got 1",
        ),
        ({"responses": [{"usage": {"tokens": 1}}]}, r"\.usage\.tokens: unknown key"),
        (
            {"responses": [{"usage": {"input_tokens": "x"}}]},
            r"\.usage\.input_tokens: expected a whole number",
        ),
        (
            {"responses": [{"usage": {"cost_usd": 0.1}}]},
            r"\.usage\.cost_usd: expected an amount as text",
        ),
        (
            {"responses": [{"text": "ab", "chunks": ["a"]}]},
            r"\.chunks: the joined chunks differ from text",
        ),
        ({"responses": [{"delay": -1}]}, r"\.delay: expected a number of seconds"),
        ({"when_exhausted": "stop"}, r"\$\.when_exhausted: expected one of 'repeat', 'error'"),
        ({"stream_delay_ms": "1"}, r"\$\.stream_delay_ms: expected a number of milliseconds"),
    ],
)
async def test_wrong_script_error_has_path(config, problem):
    with pytest.raises(PlanError, match=problem):
        await opened(**config)


async def test_script_problems_are_reported_together():
    with pytest.raises(PlanError) as caught:
        await opened(responses=[1, {"delay": "x"}, {"text": 2}])
    assert [path for path, _ in caught.value.problems] == [
        "$.responses[0]",
        "$.responses[1].delay",
        "$.responses[2].text",
    ]
