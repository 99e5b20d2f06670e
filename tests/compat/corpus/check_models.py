"""Models: construction, dumps, copies, schemas, errors, subclasses, as suites of published modules use and assert them."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import datetime
from decimal import Decimal
from typing import Literal

import pytest
from amplifier_core import (
    ApprovalRequest,
    ApprovalResponse,
    ChatRequest,
    ChatResponse,
    ConfigField,
    ContextInjection,
    HookResult,
    ImageBlock,
    Message,
    ModelInfo,
    ModuleInfo,
    Pricing,
    ProviderInfo,
    ReasoningBlock,
    RedactedThinkingBlock,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    ResponseFormatText,
    SessionStatus,
    TextBlock,
    TextContent,
    ThinkingBlock,
    ThinkingContent,
    ToolCall,
    ToolCallBlock,
    ToolCallContent,
    ToolResult,
    ToolResultBlock,
    ToolResultContent,
    ToolSpec,
    Usage,
)
from pydantic import ValidationError

TOKENS = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}

SAMPLES = [
    TextBlock(text="t"),
    ThinkingBlock(thinking="x", signature="s"),
    RedactedThinkingBlock(data="d"),
    ToolCallBlock(id="1", name="n", input={"a": [1]}),
    ToolResultBlock(tool_call_id="1", output={"o": 1}),
    ImageBlock(source={"type": "url"}),
    ReasoningBlock(content=[{"a": 1}], summary=[]),
    Message(role="user", content="hi", custom=1),
    Message(
        role="assistant", content=[TextBlock(text="t"), ToolCallBlock(id="1", name="n", input={})]
    ),
    ToolSpec(name="n", parameters={"type": "object"}),
    ToolCall(id="1", name="n", arguments={"x": 1}),
    ResponseFormatText(),
    ResponseFormatJson(),
    ResponseFormatJsonSchema(json_schema={"type": "object"}, strict=True),
    ChatRequest(
        messages=[Message(role="user", content="x")],
        tools=[ToolSpec(name="t", parameters={})],
        temperature=0.5,
    ),
    Usage(**TOKENS, cost_usd="0.5"),
    ChatResponse(content=[TextBlock(text="t")], usage=Usage(**TOKENS), finish_reason="stop"),
    ToolResult(output={"a": 1}),
    ToolResult(content=[PNG, {"type": "text", "text": "x"}]),
    HookResult(action="inject_context", context_injections=[ContextInjection(content="c")]),
    ModelInfo(
        id="m",
        display_name="M",
        context_window=1,
        max_output_tokens=1,
        pricing=Pricing(input_per_million=1, output_per_million=2),
    ),
    ProviderInfo(
        id="p", display_name="P", config_fields=[ConfigField(id="k", display_name="K", prompt="?")]
    ),
    ModuleInfo(id="i", name="n", version="1", type="tool", mount_point="tools", description="d"),
    SessionStatus(
        session_id="s",
        cost_usd=Decimal("1.5"),
        started_at=datetime.fromisoformat("2024-01-02T03:04:05"),
    ),
    ApprovalRequest(tool_name="t", action="a", risk_level="high", details={"x": 1}, timeout=5),
    ApprovalResponse(approved=True, reason="r"),
]
IDS = [f"{type(sample).__name__}{number}" for number, sample in enumerate(SAMPLES)]


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_dump_and_build_again(sample):
    kind = type(sample)
    if kind is not SessionStatus:
        assert kind.model_validate(sample.model_dump()) == sample
        assert kind(**sample.model_dump()) == sample
        assert kind.model_validate_json(sample.model_dump_json()) == sample
    assert json.loads(sample.model_dump_json()) == sample.model_dump(mode="json")
    json.dumps(sample.model_dump(mode="json"))


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_copies_are_equal_and_apart(sample):
    for twin in (
        copy.copy(sample),
        copy.deepcopy(sample),
        sample.model_copy(),
        sample.model_copy(deep=True),
    ):
        assert twin == sample
        assert twin is not sample
        assert type(twin) is type(sample)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_pickles(sample):
    assert pickle.loads(pickle.dumps(sample)) == sample


@pytest.mark.parametrize(
    "kind", sorted({type(s) for s in SAMPLES}, key=lambda k: k.__name__), ids=lambda k: k.__name__
)
def test_classes_describe_required_fields(kind):
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    if not required:
        assert kind().model_dump().keys() <= kind.model_fields.keys()
        return
    with pytest.raises(ValidationError) as caught:
        kind()
    assert {problem["loc"][0] for problem in caught.value.errors()} == required


def test_fields_in_order():
    assert list(Usage.model_fields) == [
        *(
            "input_tokens",
            "output_tokens",
            "total_tokens",
            "reasoning_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
        ),
        "cost_usd",
    ]
    assert list(ToolResult.model_fields) == ["success", "output", "error", "content"]
    assert list(ContextInjection(content="x").model_dump()) == [
        *("content", "role", "ephemeral", "append_to_last_tool_result", "hook_name", "event")
    ]
    assert list(HookResult().model_dump()) == list(HookResult.model_fields)


# ── str and repr ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (TextBlock(text="a b"), "type='text' text='a b' visibility=None"),
        (ToolCall(id="1", name="n", arguments={"a": 1}), "id='1' name='n' arguments={'a': 1}"),
        (
            ToolCall(id="1", name="n", arguments={}, signature="s"),
            "id='1' name='n' arguments={} signature='s'",
        ),
        (
            Usage(**TOKENS, cost_usd="0.10"),
            (
                "input_tokens=1 output_tokens=2 total_tokens=3 reasoning_tokens=None cache_read_tokens=None "
                "cache_write_tokens=None cost_usd=Decimal('0.10')"
            ),
        ),
        (ApprovalResponse(approved=True), "approved=True reason=None remember=False"),
        (
            Message(role="user", content="x"),
            "role='user' content='x' name=None tool_call_id=None metadata=None",
        ),
        (
            Message(role="user", content=[TextBlock(text="t")]),
            "role='user' content=[TextBlock(type='text', text='t', visibility=None)] name=None tool_call_id=None metadata=None",
        ),
    ],
)
def test_text_form(model, text):
    assert str(model) == text
    assert f"{model}" == text


def test_repr_form():
    assert repr(TextBlock(text="t")) == "TextBlock(type='text', text='t', visibility=None)"
    assert repr(Pricing(input_per_million=1, output_per_million=2)) == (
        "Pricing(input_per_million=1.0, output_per_million=2.0, cache_read_per_million=None, cache_write_per_million=None, "
        "currency='USD')"
    )


# ── unknown members ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "build",
    [
        lambda **k: TextBlock(text="t", **k),
        lambda **k: Message(role="user", content="x", **k),
        lambda **k: ToolSpec(name="n", parameters={}, **k),
        lambda **k: ToolCall(id="1", name="n", arguments={}, **k),
        lambda **k: Usage(**TOKENS, **k),
        lambda **k: ChatRequest(messages=[], **k),
        lambda **k: ChatResponse(content=[], **k),
    ],
)
def test_open_models_keep_unknown_members(build):
    model = build(novel={"a": 1})
    assert model.novel == {"a": 1}
    assert model.model_dump()["novel"] == {"a": 1}
    assert list(model.model_dump())[-1] == "novel"
    model.later = 5
    assert model.later == 5
    assert model.model_dump()["later"] == 5
    assert not hasattr(model, "never")
    with pytest.raises(AttributeError):
        model.never  # noqa: B018
    del model.later
    assert not hasattr(model, "later")
    assert type(model)(**model.model_dump()) == model


@pytest.mark.parametrize(
    "build",
    [
        HookResult,
        ToolResult,
        lambda **k: ContextInjection(content="c", **k),
        lambda **k: ModelInfo(id="m", display_name="M", context_window=1, max_output_tokens=1, **k),
        lambda **k: ProviderInfo(id="p", display_name="P", **k),
        lambda **k: ConfigField(id="k", display_name="K", prompt="?", **k),
        lambda **k: ApprovalRequest(tool_name="t", action="a", risk_level="l", **k),
        lambda **k: ApprovalResponse(approved=True, **k),
        lambda **k: SessionStatus(session_id="s", **k),
    ],
)
def test_closed_models_drop_unknown_members(build):
    model = build(metadata={"a": 1})
    assert not hasattr(model, "metadata")
    assert "metadata" not in model.model_dump()
    with pytest.raises((ValueError, AttributeError)):
        model.novel = 1


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ToolResult(), "to_dict"),
        (TextBlock(text="t"), "content"),
        (ToolCallBlock(id="1", name="n", input={}), "content"),
        (ChatResponse(content=[]), "text"),
        (ChatResponse(content=[]), "content_blocks"),
        (ChatRequest(messages=[]), "reasoning"),
        (ChatRequest(messages=[]), "enable_thinking"),
        (Message(role="user", content="x"), "tool_calls"),
        (Usage(**TOKENS), "cost_unpriced_model"),
        (
            ModelInfo(id="m", display_name="M", context_window=1, max_output_tokens=1),
            "cost_per_input_token",
        ),
        (SessionStatus(session_id="s"), "estimated_cost"),
        (HookResult(), "to_dict"),
        (Message(role="user", content="x"), "to_dict"),
    ],
)
def test_absent_attributes_modules_probe_for(model, name):
    assert not hasattr(model, name)


def test_model_copy_takes_anything():
    usage = Usage(**TOKENS).model_copy(update={"cost_unpriced_model": "m", "input_tokens": "7"})
    assert usage.cost_unpriced_model == "m"
    assert usage.input_tokens == "7"
    assert usage.model_dump()["cost_unpriced_model"] == "m"
    message = Message(role="user", content="x", metadata={"a": {}})
    assert message.model_copy().metadata is message.metadata
    assert message.model_copy(deep=True).metadata is not message.metadata
    assert message.model_copy(update={"content": "y"}).content == "y"
    assert message.content == "x"


# ── coercion ─────────────────────────────────────────────────────────────────────────────────────


def test_numbers_of_mocks_are_taken():
    from unittest.mock import MagicMock

    usage = Usage(input_tokens=MagicMock(), output_tokens=MagicMock(), total_tokens=MagicMock())
    assert (usage.input_tokens, usage.output_tokens) == (1, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Message(role="robot", content="x"),
        lambda: Message(role="user", content=None),
        lambda: Message(role="user"),
        lambda: Message(role="user", content=[{"text": "no type"}]),
        lambda: TextBlock(text=5),
        TextBlock,
        lambda: TextBlock(text="x", visibility="everybody"),
        lambda: ToolCall(id="1", name="n", arguments="{}"),
        lambda: Usage(input_tokens=1.5, output_tokens=1, total_tokens=1),
        lambda: Usage(input_tokens="x", output_tokens=1, total_tokens=1),
        lambda: Usage(**TOKENS, cost_usd=0.5),
        lambda: SessionStatus(session_id="s", cost_usd=0.5),
        lambda: SessionStatus(session_id="s", status="paused"),
        lambda: HookResult(action="explode"),
        lambda: HookResult(data=[1]),
        lambda: HookResult(approval_default="maybe"),
        ContextInjection,
        lambda: ContextInjection(content="x", role="tool"),
        lambda: ModelInfo(id="m", display_name="M", context_window="many", max_output_tokens=1),
        lambda: ConfigField(id="k", display_name="K", prompt="?", field_type="color"),
        lambda: ModuleInfo(
            id="i", name="n", version="1", type="gadget", mount_point="tools", description="d"
        ),
        lambda: ApprovalRequest(tool_name="t", action="a", risk_level="l", timeout=0),
        lambda: ApprovalRequest(tool_name="t", action="a", risk_level="l", timeout=-1),
        lambda: Pricing(input_per_million=1, output_per_million=1, currency="usd"),
        lambda: Pricing(input_per_million="x", output_per_million=1),
        lambda: ToolResult(success="perhaps"),
        lambda: ToolResult(error="text"),
        lambda: ChatRequest(messages="hello"),
        ChatRequest,
        lambda: ChatResponse(content="text"),
    ],
)
def test_misfit_is_validation_error(build):
    with pytest.raises(ValidationError) as caught:
        build()
    assert isinstance(caught.value, ValueError)
    assert caught.value.error_count() == len(caught.value.errors()) >= 1
    assert "validation error" in str(caught.value)


def test_errors_have_location():
    with pytest.raises(ValidationError) as caught:
        Usage(input_tokens=1)
    assert sorted((e["type"], e["loc"]) for e in caught.value.errors()) == [
        ("missing", ("output_tokens",)),
        ("missing", ("total_tokens",)),
    ]
    assert caught.value.title == "Usage"
    with pytest.raises(ValidationError, match="must be Decimal"):
        Usage(**TOKENS, cost_usd=0.1)
    with pytest.raises(ValidationError) as caught:
        Message.model_validate({"role": "robot", "content": "x"})
    assert caught.value.errors()[0]["loc"] == ("role",)
    with pytest.raises(ValidationError):
        Message.model_validate_json("{")
    with pytest.raises(ValidationError):
        Message.model_validate("not a dict")


def test_blocks_are_distinguished_by_their_type():
    message = Message(
        role="assistant",
        content=[
            {"type": "text", "text": "t"},
            {"type": "thinking", "thinking": "x"},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "tool_call", "id": "1", "name": "n", "input": {}},
            {"type": "tool_result", "tool_call_id": "1", "output": None},
            {"type": "image", "source": {}},
            {"type": "reasoning", "content": [], "summary": []},
        ],
    )
    assert [type(block) for block in message.content] == [
        *(
            TextBlock,
            ThinkingBlock,
            RedactedThinkingBlock,
            ToolCallBlock,
            ToolResultBlock,
            ImageBlock,
            ReasoningBlock,
        )
    ]
    assert [block["type"] for block in message.model_dump()["content"]] == [
        *("text", "thinking", "redacted_thinking", "tool_call", "tool_result", "image", "reasoning")
    ]


def test_assignment_is_not_checked():
    message = Message(role="user", content="x")
    message.content = 5
    assert message.content == 5
    result = HookResult()
    result.action = "anything"
    assert result.action == "anything"


# ── dumping ──────────────────────────────────────────────────────────────────────────────────────


def test_dump_options():
    message = Message(role="user", content=[TextBlock(text="t")], extra_note=None)
    assert message.model_dump(exclude_none=True) == {
        "role": "user",
        "content": [{"type": "text", "text": "t"}],
    }
    schema = ResponseFormatJsonSchema(json_schema={"a": 1})
    assert schema.model_dump()["json_schema"] == {"a": 1}
    assert schema.model_dump(by_alias=True)["schema"] == {"a": 1}


def test_costs_are_text_in_dumps():
    for model in (
        Usage(**TOKENS, cost_usd=Decimal("0.0000123")),
        SessionStatus(session_id="s", cost_usd="0.0000123"),
    ):
        assert model.cost_usd == Decimal("0.0000123")
        assert (
            model.model_dump()["cost_usd"]
            == model.model_dump(mode="json")["cost_usd"]
            == "0.0000123"
        )
    assert Usage(**TOKENS, cost_usd=5).model_dump()["cost_usd"] == "5"
    assert Usage(**TOKENS).model_dump()["cost_usd"] is None
    assert Usage(**TOKENS, cost_usd=Decimal("1E-9")).model_dump()["cost_usd"] == "1E-9"


def test_status_to_dict_is_json_without_none():
    status = SessionStatus(session_id="s", cost_usd=Decimal("2.50"), status="completed")
    shown = status.to_dict()
    assert shown["cost_usd"] == "2.50"
    assert shown["status"] == "completed"
    assert isinstance(shown["started_at"], str)
    assert "ended_at" not in shown
    json.dumps(shown)


def test_json_text():
    assert TextBlock(text="é").model_dump_json() == '{"type":"text","text":"é","visibility":null}'
    assert TextBlock(text="x").model_dump_json(exclude_none=True) == '{"type":"text","text":"x"}'
    assert TextBlock(text="x").model_dump_json(indent=2).startswith('{\n  "type": "text"')


# ── tool results ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("result", "text", "serialized"),
    [
        (ToolResult(output="x"), "x", "x"),
        (ToolResult(), "Success", "Success"),
        (
            ToolResult(output={"b": 1, "a": Decimal("1.5")}),
            "{'b': 1, 'a': Decimal('1.5')}",
            '{"b": 1, "a": "1.5"}',
        ),
        (ToolResult(output=[1, "é"]), "[1, 'é']", None),
        (ToolResult(success=False), "Failed", "Error: Failed"),
        (ToolResult(success=False, error={"message": "m"}), "Error: m", "m"),
        (
            ToolResult(success=False, error={"code": 1}),
            "Error: Unknown error",
            "Error: Unknown error",
        ),
        (ToolResult(output=0), "Success", "0"),
        (ToolResult(output="a\x00b\ud800"), "a\x00b\ud800", "ab"),
    ],
)
def test_texts_of_tool_results(result, text, serialized):
    assert str(result) == text
    if serialized is not None:
        assert result.get_serialized_output() == serialized


# ── subclasses ───────────────────────────────────────────────────────────────────────────────────


class OwnChatResponse(ChatResponse):
    content_blocks: list[TextContent | ThinkingContent | ToolCallContent] | None = None
    text: str | None = None
    web_search_results: list[dict] | None = None


class OwnRedacted(RedactedThinkingBlock):
    type: Literal["redacted_thinking"] = "redacted_thinking"
    note: str = "n"


def test_subclasses_with_bare_annotations():
    kept = [TextContent(text="x"), ToolCallContent(id="1", name="n", arguments={})]
    response = OwnChatResponse(
        content=[TextBlock(text="t")], content_blocks=kept, text="t", usage=Usage(**TOKENS), odd=1
    )
    assert isinstance(response, ChatResponse)
    assert response.content_blocks[0] is kept[0]
    assert (response.text, response.odd, response.web_search_results) == ("t", 1, None)
    assert list(response.model_dump())[:7] == [
        *(
            "content",
            "tool_calls",
            "usage",
            "degradation",
            "finish_reason",
            "metadata",
            "content_blocks",
        )
    ]
    assert list(OwnChatResponse.model_fields)[-3:] == [
        "content_blocks",
        "text",
        "web_search_results",
    ]
    assert OwnChatResponse(content=[]).text is None
    assert OwnChatResponse(content=[]) == OwnChatResponse(content=[])
    assert OwnChatResponse(content=[]) != ChatResponse(content=[])
    assert pickle.loads(pickle.dumps(response)).text == "t"
    assert copy.deepcopy(response).content_blocks[0].text == "x"


def test_subclasses_of_blocks_are_kept():
    block = OwnRedacted(data="d")
    assert (block.type, block.note) == ("redacted_thinking", "n")
    assert Message(role="assistant", content=[block]).content[0] is block


# ── content models ───────────────────────────────────────────────────────────────────────────────


def test_content_models_are_dataclasses():
    import dataclasses

    from amplifier_core.content_models import ContentBlock, ContentBlockType

    assert dataclasses.is_dataclass(TextContent)
    text = TextContent(text="x", raw={"secret": 1})
    assert text.type is ContentBlockType.TEXT
    assert text.type.value == "text" == ContentBlockType.TEXT
    assert text.to_dict() == {"type": "text", "text": "x"}
    assert ThinkingContent(text="t").to_dict() == {"type": "thinking", "text": "t"}
    assert ToolCallContent(id="1", name="n", arguments={"a": 1}).to_dict() == {
        "type": "tool_call", "id": "1", "name": "n", "arguments": {"a": 1},
    }  # fmt: skip
    assert ToolResultContent(tool_call_id="1", output="o").to_dict() == {
        "type": "tool_result", "tool_call_id": "1", "output": "o",
    }  # fmt: skip
    assert ToolResultContent(tool_call_id="1", output="o", error="e").to_dict()["error"] == "e"
    assert ContentBlock(type=ContentBlockType.TEXT).to_dict() == {"type": "text"}
    assert not hasattr(text, "model_dump")
