"""Streamed answers over real HTTP, byte by byte: what comes out of every provider, and what goes in."""

from __future__ import annotations

import gzip
import re
from decimal import Decimal
from typing import Any

import pytest

from amplifier.errors import LLMError, StreamError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    ReasoningBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    to_dict,
)
from tests.modules.providers.scripted_http_server import END, EVENT_STREAM, chunk, reply
from tests.modules.providers.services import (
    KEY,
    SERVICES,
    arguments,
    ask,
    chunks_of,
    error_of,
    mounted,
    response_of,
)


async def test_answer_arrives_in_pieces_then_whole(service, server):
    server.answers(service.answer(["Hello", ", ", "world"]))
    async with mounted(service, server) as opened:
        chunks = await chunks_of(opened.provider, ask())
    assert [(c.kind, c.text) for c in chunks[:-1]] == [
        ("block_start", None),
        ("block_delta", "Hello"),
        ("block_delta", ", "),
        ("block_delta", "world"),
        ("block_end", None),
    ]
    assert {(c.index, c.block_type) for c in chunks[:-1]} == {(0, "text")}
    last: Any = chunks[-1]
    assert last.kind == "response"
    assert last.response.content == [chunks[-2].block] == [TextBlock(text="Hello, world")]
    assert (server.last.method, server.last.path) == ("POST", service.path)


async def test_call_arguments_are_assembled_in_order(service, server):
    calls = [("c1", "look", arguments(path="a b", deep={"n": [1, 2]})), ("c2", "count", "{}")]
    server.answers(service.answer(["let me see"], calls))
    async with mounted(service, server) as opened:
        response = await opened.provider.complete(ask())
        parsed = opened.provider.parse_tool_calls(response)
    assert parsed == [
        ToolCall(id="c1", name="look", arguments={"path": "a b", "deep": {"n": [1, 2]}}),
        ToolCall(id="c2", name="count", arguments={}),
    ]
    assert [type(block) for block in response.content] == [TextBlock, ToolCallBlock, ToolCallBlock]


async def test_integers_beyond_64_bits_stay_exact(service, server):
    server.answers(service.answer([], [("c1", "look", '{"n": 123456789012345678901234567890}')]))
    async with mounted(service, server) as opened:
        response = await opened.provider.complete(ask())
        assert response.tool_calls[0].arguments == {"n": 123456789012345678901234567890}
        await opened.provider.complete(conversation_with(response))
    assert "123456789012345678901234567890" in str(server.last.body)


@pytest.mark.parametrize("given_id", ["", "taken"])
async def test_missing_or_duplicate_id_is_replaced(service, server, given_id):
    script = service.answer([], [(given_id, "look", "{}"), (given_id, "look", "{}")])
    request = conversation_with(
        ChatResponse(content=[ToolCallBlock(id="taken", name="look", input={})])
    )
    response = await response_of(service, server, script, request)
    ids = [call.id for call in response.tool_calls]
    assert all(ids)
    assert len({*ids, "taken"}) == 3
    assert ids == [block.id for block in response.content if isinstance(block, ToolCallBlock)]


def conversation_with(response):
    """The answer put back into a conversation, as a loop does it, with a result for each call."""
    content: Any = [to_dict(block) for block in response.content]
    calls = [block for block in response.content if isinstance(block, ToolCallBlock)]
    answers = [
        Message(role="tool", tool_call_id=call.id, name=call.name, content="done") for call in calls
    ]
    return ChatRequest(
        messages=[
            Message(role="user", content="go"),
            Message(role="assistant", content=content),
            *answers,
        ]
    )


async def test_sealed_thoughts_return_unchanged(service, server):
    script = service.answer(["so"], [("c1", "look", "{}")], ["deep ", "thought"])
    response = await response_of(service, server, script)
    await response_of(service, server, script, conversation_with(response))
    first, sent = response.content[0], server.last.body
    if service.name == "anthropic":
        assert first == ThinkingBlock(thinking="deep thought", signature="c2lnbmVk")
        sealed = {"type": "thinking", "thinking": "deep thought", "signature": "c2lnbmVk"}
        assert sent["messages"][1]["content"][0] == sealed
    elif "input" in sent:
        assert isinstance(first, ReasoningBlock)
        summary = [{"type": "summary_text", "text": "deep thought"}]
        assert sent["input"][1] == {
            "type": "reasoning",
            "id": "rs_1",
            "summary": summary,
            "encrypted_content": "c2VhbGVk",
        }
        call = {
            "type": "function_call",
            "id": "fc_c1",
            "call_id": "c1",
            "name": "look",
            "arguments": "{}",
        }
        assert sent["input"][3] == call
    else:
        assert sent["messages"][1]["reasoning_content"] == "deep thought"


async def test_usage_adds_up_and_has_price(service, server):
    usage = (await response_of(service, server, service.answer(["x"]))).usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (17, 7, 24)
    assert usage.cache_read_tokens == 5
    if service.name == "anthropic":
        assert usage.cache_write_tokens == 2
    if service.name == "openai-compatible":
        assert usage.cost_usd is None
    else:
        assert isinstance(usage.cost_usd, Decimal)
        assert 0 < usage.cost_usd < 1


TOKEN_COUNT = re.compile(rb'("\w*tokens": )\d+')


async def test_non_numeric_usage_is_stream_error(service, server):
    pieces = [re.sub(rb"^[^\r]+\r\n|\r\n$", b"", piece) for piece in service.pieces(["one"])]
    broken = [TOKEN_COUNT.sub(rb'\1"many"', piece) for piece in pieces]
    assert broken != pieces
    error = await error_of(StreamError, service, server, EVENT_STREAM, *map(chunk, broken), END)
    assert "sent a malformed response" in str(error)


async def test_multi_member_gzip_body_is_not_wrong(service, server):
    """The HTTP client of the SDKs reads the first member only: the rest is missing, and that is an error."""
    pieces = [re.sub(rb"^[^\r]+\r\n|\r\n$", b"", piece) for piece in service.pieces(["one", "two"])]
    members = [gzip.compress(b"".join(pieces[:3])), gzip.compress(b"".join(pieces[3:]))]
    head = EVENT_STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    await error_of(LLMError, service, server, head, chunk(b"".join(members)), END)


async def test_unknown_model_has_no_price(server):
    body = {
        "type": "message",
        "id": "m",
        "model": "claude-nonsense-99",
        "content": [],
        "stop_reason": "end_turn",
    }
    script = [reply({**body, "usage": {"input_tokens": 1, "output_tokens": 1}})]
    usage = (await response_of(SERVICES["anthropic"], server, script)).usage
    assert (usage.cost_usd, usage.total_tokens) == (None, 2)


async def test_request_and_response_events_have_usage(service, server):
    server.answers(service.answer(["x"]))
    async with mounted(service, server) as opened:
        await opened.provider.complete(ask())
        (before,), (after,) = opened.payloads("llm:request"), opened.payloads("llm:response")
    assert before["provider"] == after["provider"] == service.name
    assert before["message_count"] == 1
    assert after["status"] == "ok"
    assert after["duration_ms"] >= 0
    assert {"input_tokens": 17, "output_tokens": 7, "cache_read_tokens": 5}.items() <= after[
        "usage"
    ].items()
    assert "raw" not in before
    assert "raw" not in after


async def test_raw_events_never_contain_key(service, server):
    server.answers(service.answer(["x"]))
    async with mounted(service, server, raw=True) as opened:
        await opened.provider.complete(ask())
        (before,), (after,) = opened.payloads("llm:request"), opened.payloads("llm:response")
    assert before["raw"] == server.last.body
    assert after["raw"]
    assert KEY not in str(opened.recorder.events)


async def test_key_is_sent_in_service_header(service, server):
    await response_of(service, server, service.answer(["x"]), extra_headers={"X-Mine": "yes"})
    headers = server.last.headers
    assert (headers.get("x-api-key") or headers.get("authorization")).removeprefix("Bearer ") == KEY
    assert headers["x-mine"] == "yes"


async def test_connections_are_used_again(service, server):
    server.answers(service.answer(["x"]))
    async with mounted(service, server) as opened:
        for _ in range(3):
            await opened.provider.complete(ask())
    assert len(server.requests) == 3
    # An unknown server without TLS may close a connection after each answer, as llama.cpp's does.
    assert server.connections == (
        len(server.requests) if service.name == "openai-compatible" else 1
    )


async def test_bytes_may_be_split_anywhere(service, server):
    body = b"".join(
        piece.split(b"\r\n", 1)[1][:-2]
        for piece in service.pieces(["grüße", "…😀"], thoughts=["é"])
    )
    script = [EVENT_STREAM, *(chunk(bytes([byte])) for byte in body), END]
    assert (await response_of(service, server, script)).content[-1] == TextBlock(text="grüße…😀")


async def test_service_models_are_listed(service, server):
    listed = {
        "data": [
            {"id": "model-a", "display_name": "A", "max_input_tokens": 5, "max_tokens": 3},
            {"id": "model-b"},
        ]
    }
    server.answers([reply(listed)])
    async with mounted(service, server) as opened:
        models = await opened.provider.list_models()
    assert [model.id for model in models] == ["model-a", "model-b"]
    assert server.last.path.partition("?")[0] == "/v1/models"


async def test_server_may_report_context_window(server):
    listed = [
        {"id": "a", "max_model_len": 111},
        {"id": "b", "meta": {"n_ctx": 222}},
        {"id": "c"},
        {"id": "d", "meta": None},
    ]
    server.answers([reply({"data": listed})])
    async with mounted(SERVICES["openai-compatible"], server, context_window=333) as opened:
        models = await opened.provider.list_models()
    assert [model.context_window for model in models] == [111, 222, 333, 333]


async def test_token_limit_is_sent_only_when_needed(service, server):
    server.answers(service.answer(["x"]))
    names = ("max_tokens", "max_output_tokens", "max_completion_tokens")
    async with mounted(service, server) as opened:
        await opened.provider.complete(ask())
        unasked = [server.last.body[name] for name in names if name in server.last.body]
        await opened.provider.complete(ask(max_output_tokens=77))
        asked = [server.last.body[name] for name in names if name in server.last.body]
    assert (
        unasked == {"anthropic": [32_000], "openai": [], "openai-compatible": [4096]}[service.name]
    )
    assert asked == [77]


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"input_tokens": null}'])
@pytest.mark.parametrize("name", ["anthropic", "openai-responses"])
async def test_malformed_token_count_is_stream_error(server, name, body):
    server.answers([reply(body)])
    async with mounted(SERVICES[name], server) as opened:
        with pytest.raises(StreamError, match="sent a malformed response"):
            await opened.provider.count_tokens(ask())


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 3}'])
async def test_known_models_replace_missing_list(service, server, body, caplog):
    server.answers([reply(body)])
    async with mounted(service, server) as opened:
        models = await opened.provider.list_models()
    assert models
    assert "could not be read" in caplog.text


async def test_answer_may_arrive_whole(service, server):
    """Because the server does not stream."""
    bodies = {
        "/v1/messages": {
            "type": "message",
            "model": "claude-sonnet-5",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"x": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        },
        "/v1/chat/completions": {
            "model": "gpt-5.6-sol",
            "choices": [
                {
                    "message": {
                        "content": "hi",
                        "tool_calls": [
                            {"id": "c1", "function": {"name": "look", "arguments": '{"x": 1}'}}
                        ],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        },
        "/v1/responses": {
            "status": "completed",
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"x": 1}'},
            ],
            "usage": {"input_tokens": 3, "output_tokens": 4},
        },
    }
    server.answers([reply(bodies[service.path])])
    async with mounted(service, server) as opened:
        chunks = await chunks_of(opened.provider, ask())
    assert [c.index for c in chunks if c.kind == "block_end"] == [0, 1]
    response: Any = chunks[-1].response
    assert response.content[0] == TextBlock(text="hi")
    assert opened.provider.parse_tool_calls(response) == [
        ToolCall(id="c1", name="look", arguments={"x": 1})
    ]
    assert response.usage.total_tokens == 7
