"""The published wire format, where protobuf is installed: what the foundation library's gRPC adapter reads and writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "so", "visibility": "user"},
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_call", "id": "1", "name": "t", "input": {"a": 1}},
                {"type": "tool_result", "tool_call_id": "1", "output": [1]},
                {"type": "image", "source": {"type": "base64"}},
                {"type": "reasoning", "content": [{"x": 1}], "summary": []},
                {"type": "redacted_thinking", "data": "d"},
            ],
        },
    ],
    "tools": [{"name": "t", "parameters": {"type": "object"}, "description": "d"}],
    "response_format": {"type": "json_schema", "schema": {"type": "object"}, "strict": True},
    "temperature": 0.5,
    "stream": True,
    "stop": ["x"],
    "tool_choice": {"type": "auto"},
    "metadata": {"k": "v"},
}


@pytest.fixture
def engine(alias: None) -> Any:
    """The functions that the adapter imports."""
    import amplifier_core._engine as engine  # type: ignore[import-not-found]

    return engine


def on_the_wire(wire: Any) -> bytes:
    """The request above, written with protobuf itself."""
    blocks = [
        {"text_block": {"text": "so"}, "visibility": wire.VISIBILITY_USER_ONLY},
        {"thinking_block": {"thinking": "hm", "signature": "s"}},
        {"tool_call_block": {"id": "1", "name": "t", "input_json": '{"a": 1}'}},
        {"tool_result_block": {"tool_call_id": "1", "output_json": "[1]"}},
        {"image_block": {"source_json": '{"type": "base64"}'}},
        {"reasoning_block": {"content": ['{"x": 1}']}},
        {"redacted_thinking_block": {"data": "d"}},
    ]
    written: bytes = wire.ChatRequest(
        messages=[
            {"role": wire.ROLE_USER, "text_content": "hi"},
            {"role": wire.ROLE_ASSISTANT, "block_content": {"blocks": blocks}},
            {"role": wire.ROLE_USER},
        ],
        tools=[{"name": "t", "parameters_json": '{"type": "object"}', "description": "d"}],
        response_format={"json_schema": {"schema_json": '{"type": "object"}', "strict": True}},
        temperature=0.5,
        stream=True,
        stop=["x"],
        tool_choice='{"type": "auto"}',
        metadata_json='{"k": "v"}',
    ).SerializeToString()
    return written


def test_a_request_is_read_and_messages_without_content_are_left_out(engine: Any):
    assert json.loads(engine.proto_chat_request_to_json(on_the_wire(engine.wire))) == REQUEST


def test_what_is_no_request_is_a_value_error(engine: Any):
    with pytest.raises(ValueError, match="decode"):
        engine.proto_chat_request_to_json(b"\xff\xff")


def test_a_response_is_written_as_text_and_as_blocks(engine: Any):
    content = [*REQUEST["messages"][1]["content"][:3], {"type": "reasoning", "content": [1], "summary": []}]
    response = {
        "content": content,
        "tool_calls": [{"id": "1", "name": "t", "arguments": {"a": 1}}],
        "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "cost_usd": "0.5"},
        "finish_reason": "stop",
        "metadata": {"k": "v"},
    }

    written = engine.wire.ChatResponse.FromString(engine.json_to_proto_chat_response(json.dumps(response)))

    assert json.loads(written.content) == content
    assert [block.WhichOneof("block") for block in written.content_blocks] == [
        *("text_block", "thinking_block", "tool_call_block", "reasoning_block")
    ]
    assert json.loads(written.tool_calls[0].arguments_json) == {"a": 1}
    assert (written.usage.prompt_tokens, written.usage.completion_tokens, written.usage.cost_usd) == (1, 2, "0.5")
    assert (written.finish_reason, json.loads(written.metadata_json)) == ("stop", {"k": "v"})


@pytest.mark.parametrize("text", ["x", '{"content": 5}', '{"content": [{"type": "odd"}]}'])
def test_what_is_no_response_is_a_value_error(engine: Any, text: str):
    with pytest.raises(ValueError):  # noqa: PT011 — which one depends on what is wrong
        engine.json_to_proto_chat_response(text)
