"""What suites take from the engine: errors, delays and translations of the wire format."""

from __future__ import annotations

import json

import pytest
from amplifier_core import _engine

HELLO = bytes.fromhex("0a090801120568656c6c6f")


def test_provider_errors_are_data():
    error = _engine.ProviderError(
        message="429", provider="p", model="m", retry_after=2.5, retryable=True, error_type="RateLimit"
    )
    assert (error.message, error.provider, error.model, error.retry_after) == ("429", "p", "m", 2.5)
    assert (error.retryable, error.error_type) == (True, "RateLimit")
    plain = _engine.ProviderError(message="x")
    assert (plain.provider, plain.model, plain.retry_after, plain.retryable, plain.error_type) == (
        None,
        None,
        None,
        False,
        "Other",
    )
    assert not isinstance(plain, Exception)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, 'ProviderError("m")'),
        ({"provider": "p", "model": 'q"'}, 'ProviderError("m", provider="p", model="q\\"")'),
        ({"delay_multiplier": 1.0}, 'ProviderError("m", delay_multiplier=1)'),
        ({"retry_after": 0.0, "delay_multiplier": 2.5}, 'ProviderError("m", retry_after=0, delay_multiplier=2.5)'),
        (
            {"retry_after": 1e20, "retryable": True},
            'ProviderError("m", retry_after=100000000000000000000, retryable=True)',
        ),
        ({"delay_multiplier": 1e-7, "error_type": "x"}, 'ProviderError("m", delay_multiplier=0.0000001)'),
        ({"message": "a\n\x07é"}, 'ProviderError("a\\n\\u{7}é")'),
        ({"retry_after": float("nan")}, 'ProviderError("m", retry_after=NaN)'),
    ],
)
def test_a_provider_error_shows_all_it_was_given(given, shown):
    assert repr(_engine.ProviderError(**{"message": "m", **given})) == shown


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("rate limit exceeded", "rate_limit"),
        ("request timed out", "timeout"),
        ("something unexpected", "unknown"),
        ("invalid API key", "authentication"),
        ("maximum context length", "context_length"),
        ("blocked by safety", "content_filter"),
        ("model not found", "not_found"),
    ],
)
def test_categories_of_messages(text, category):
    assert _engine.classify_error_message(text) == category


def test_delays():
    config = _engine.RetryConfig(jitter=False)
    assert [_engine.compute_delay(config, attempt) for attempt in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert _engine.compute_delay(config, 20) == 60.0
    assert _engine.compute_delay(config, 0, retry_after=5.0) == 5.0
    assert _engine.compute_delay(config, 0, delay_multiplier=3.0) == 3.0


# ── the wire ─────────────────────────────────────────────────────────────────────────────────────


def test_requests_from_the_wire():
    assert json.loads(_engine.proto_chat_request_to_json(HELLO)) == {
        "messages": [{"role": "system", "content": "hello"}]
    }
    with_tool = bytes.fromhex(
        "0a100801120c7573652074686520746f6f6c121c0a09746573745f746f6f6c120b41207465737420746f6f6c1a027b7d"
    )
    assert json.loads(_engine.proto_chat_request_to_json(with_tool))["tools"] == [
        {"name": "test_tool", "parameters": {}, "description": "A test tool"}
    ]
    assert json.loads(_engine.proto_chat_request_to_json(b"")) == {"messages": []}
    with pytest.raises(ValueError, match="Failed to decode"):
        _engine.proto_chat_request_to_json(b"\xff\xff")
    with pytest.raises(TypeError):
        _engine.proto_chat_request_to_json("text")


def test_responses_to_the_wire():
    given = {"content": [{"type": "text", "text": "Hello"}], "finish_reason": "stop"}
    written = _engine.json_to_proto_chat_response(json.dumps(given))
    text = json.dumps(given["content"], separators=(",", ":")).encode()
    assert written == b"\x0a" + bytes([len(text)]) + text + b"\x2a\x04stop" + b"\x3a\x09\x0a\x07\x0a\x05Hello"
    calls = {"content": [], "tool_calls": [{"id": "1", "name": "n", "arguments": {"k": "v"}}]}
    assert b'{"k":"v"}' in _engine.json_to_proto_chat_response(json.dumps(calls))


@pytest.mark.parametrize(
    "text",
    ["x", '{"a": 1}', '{"content": "text"}', '{"content": [{"type": "odd"}]}', '{"content": [{"type": "text"}]}'],
)
def test_what_is_no_response(text):
    with pytest.raises(ValueError, match="Failed to deserialize ChatResponse"):
        _engine.json_to_proto_chat_response(text)


def test_content_of_tool_results():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA==", "odd": 1}}
    given = json.dumps([{"type": "text", "text": "d", "odd": True}, image])
    assert json.loads(_engine._normalize_tool_result_content(given)) == [
        {"type": "text", "text": "d"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
    ]
    assert _engine._normalize_tool_result_content("[]") is None
    bad = '[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"private-bytes"}}]'
    with pytest.raises(ValueError, match="invalid tool result image data") as caught:
        _engine._normalize_tool_result_content(bad)
    assert "private-bytes" not in str(caught.value)
    for broken in ('{"a": 1}', "5", "x"):
        with pytest.raises(ValueError, match="invalid tool result content"):
            _engine._normalize_tool_result_content(broken)
    result = {"success": True, "output": {"a": 1}, "error": None, "content": [image]}
    shown = json.loads(_engine._tool_result_safe_hook_presentation(json.dumps(result)))
    assert shown["content"][0]["type"] == "text"
    assert shown["output"] == {"a": 1}


def test_messages_of_the_wire():
    pytest.importorskip("google.protobuf")
    from amplifier_core._grpc_gen import amplifier_module_pb2 as wire

    assert [f.name for f in wire.ToolResult.DESCRIPTOR.fields] == [
        "success",
        "output_json",
        "error_json",
        "content_blocks",
    ]
    assert (wire.HOOK_ACTION_CONTINUE, wire.HOOK_ACTION_DENY, wire.HookAction.Name(5)) == (1, 3, "HOOK_ACTION_ASK_USER")
    assert len(wire.DESCRIPTOR.enum_types_by_name["HookAction"].values) == 6
    usage = wire.Usage(prompt_tokens=1)
    assert not usage.HasField("reasoning_tokens")
    usage.reasoning_tokens = 0
    assert wire.Usage.FromString(usage.SerializeToString()).HasField("reasoning_tokens")
    request = wire.ChatRequest(
        messages=[wire.Message(role=wire.ROLE_USER, text_content="hi")], temperature=0.5, stop=["x"]
    )
    assert json.loads(_engine.proto_chat_request_to_json(request.SerializeToString())) == {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "stop": ["x"],
    }
    field = wire.ConfigField(id="k", show_when={"a": "b"})
    assert dict(field.show_when) == {"a": "b"}
    blocks = wire.Message()
    blocks.block_content.blocks.add().text_block.text = "t"
    assert blocks.WhichOneof("content") == "block_content"
