"""Models and JSON: stable in both directions, nothing lost, every problem named."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.conformance.strategies import (
    content_blocks,
    instances,
    json_objects,
    json_values,
)
from amplifier.errors import ModelError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ContentBlockUnion,
    HookResult,
    ImageBlock,
    Message,
    OpenModel,
    ResponseFormat,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    TextBlock,
    ToolCall,
    ToolResult,
    ToolResultBlock,
    UnknownBlock,
    Usage,
    from_dict,
    from_json,
    to_dict,
    to_json,
)
from amplifier.models.base import model
from tests.models.test_fields import model_classes


def problems_of(cls: Any, data: Any) -> list[tuple[str, str]]:
    """What is wrong, by both ways in; they have to agree."""
    with pytest.raises(ModelError) as caught:
        from_dict(cls, data)
    with pytest.raises(ModelError) as from_text:
        from_json(cls, json.dumps(data))
    assert caught.value.problems == from_text.value.problems
    return caught.value.problems


# ── round trips ──


@pytest.mark.parametrize("cls", model_classes())
@given(data=st.data())
def test_json_round_trip_is_exact(cls, data):
    value = data.draw(instances(cls))
    text = to_json(value)
    again = from_json(cls, text)
    assert again == value
    assert type(again) is cls
    assert to_json(again) == text
    assert from_json(cls, text.encode()) == value


@given(cls=st.sampled_from(model_classes()), data=st.data())
def test_to_dict_and_to_json_agree(cls, data):
    value = data.draw(instances(cls))
    plain = to_dict(value)
    assert plain == json.loads(to_json(value))
    assert list(plain) == list(json.loads(to_json(value)))
    assert from_dict(cls, plain) == value


@given(content_blocks())
def test_block_class_follows_its_type(block):
    again = from_json(ContentBlockUnion, to_json(block))
    assert again == block
    assert type(again) is type(block)
    assert from_dict(ContentBlockUnion, to_dict(block)) == block


@given(json_values())
def test_plain_json_values_pass_unchanged(value):
    assert json.loads(to_json(value)) == value
    assert from_json(Any, to_json(value)) == value
    assert to_dict(value) == value


def test_models_inside_plain_values_are_written():
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3, cost_usd="0.50")
    expected = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "cost_usd": "0.50"}
    assert to_dict({"usage": [usage]}) == {"usage": [expected]}
    assert to_json({"usage": usage}) == to_json({"usage": expected})
    assert to_dict(ToolResult(output=usage))["output"] == expected


# ── the form of the text ──


def test_text_is_compact_ordered_without_none():
    message = Message(
        content=[TextBlock(visibility="user", text="é")], role="user", zebra=1, apple=None
    )
    expected = '{"role":"user","content":[{"type":"text","text":"é","visibility":"user"}],"zebra":1,"apple":null}'
    assert to_json(message) == expected


def test_none_unlike_default_is_written():
    request = ChatRequest(messages=[], stream=None)
    assert to_json(request) == '{"messages":[],"stream":null}'
    assert from_json(ChatRequest, to_json(request)) == request
    assert (
        to_json(ToolResultBlock(tool_call_id="1", output=None))
        == '{"type":"tool_result","tool_call_id":"1","output":null}'
    )
    assert to_json(HookResult()).startswith(
        '{"action":"continue","context_injection_role":"system","ephemeral":false,'
    )


def test_response_format_schema_keeps_field_name():
    assert to_dict(ResponseFormatJsonSchema(json_schema={"a": 1})) == {
        "type": "json_schema",
        "json_schema": {"a": 1},
    }
    assert problems_of(ResponseFormatJsonSchema, {"schema": {}}) == [
        ("json_schema", "required, but missing")
    ]


def test_unknown_members_never_hide_declared_ones():
    block = TextBlock(text="x")
    block.extra = {"text": "forged", "type": "forged", "visibility": "forged", "other": 1}
    for shown in (to_dict(block), json.loads(to_json(block)), to_dict({"block": block})["block"]):
        assert shown == {"type": "text", "text": "x", "other": 1}


def test_class_decides_written_type():
    block = TextBlock(text="x")
    block.type = "image"
    assert to_dict(block)["type"] == to_dict([block])[0]["type"] == "text"


# ── unknown things ──


@given(
    cls=st.sampled_from(
        [cls for cls in model_classes() if issubclass(cls, OpenModel) and cls is not UnknownBlock]
    ),
    data=st.data(),
)
def test_open_models_give_unknown_members_back(cls, data):
    plain = to_dict(data.draw(instances(cls, extra={})))
    unknown = {f"x-{name}": value for name, value in data.draw(json_objects()).items()}
    assert to_dict(from_dict(cls, {**unknown, **plain})) == {**plain, **unknown}
    text = to_json(from_dict(cls, {**plain, **unknown}))
    assert list(json.loads(text)) == [*plain, *unknown]


@given(instances(ChatRequest), json_objects())
def test_unknown_members_survive_at_every_level(request, unknown):
    plain = to_dict(request)
    marked = json.loads(
        json.dumps(plain), object_hook=lambda found: {**found, "x-unknown": unknown}
    )
    for closed in ("response_format",):
        marked.pop(closed, None)
    assert to_dict(from_dict(ChatRequest, marked)) == marked
    text = to_json(from_json(ChatRequest, json.dumps(marked)))
    assert json.loads(text) == marked
    assert to_json(from_json(ChatRequest, text)) == text


@given(
    st.text().filter(
        lambda tag: (
            tag
            not in {
                "text",
                "thinking",
                "redacted_thinking",
                "tool_call",
                "tool_result",
                "image",
                "reasoning",
            }
        )
    ),
    json_objects(),
    st.integers(0, 3),
)
def test_unknown_block_round_trip_is_exact(tag, members, position):
    items = [(name, value) for name, value in members.items() if name != "type"]
    items.insert(position, ("type", tag))
    text = to_json(dict(items))
    for again in (from_json(ContentBlockUnion, text), from_dict(ContentBlockUnion, dict(items))):
        assert type(again) is UnknownBlock
        assert to_json(again) == text
        assert list(to_dict(again)) == [name for name, _ in items]
    whole = f'{{"role":"user","content":[{text}]}}'
    assert to_json(from_json(Message, whole)) == whole
    assert to_json(Message(role="user", content=[dict(items)])) == whole


def test_unknown_response_format_is_error():
    assert problems_of(ResponseFormat, {"type": "yaml"}) == [
        ("type", "expected one of 'text', 'json', 'json_schema', got 'yaml'")
    ]
    assert from_dict(ResponseFormat, {"type": "json", "unknown": 1}) == ResponseFormatJson()


# ── independence ──


@given(json_objects())
def test_read_model_shares_no_input(source):
    data = {"type": "image", "source": {"inner": source}, "unknown": {"inner": source}}
    block = from_dict(ImageBlock, data)
    source["changed"] = True
    assert "changed" not in block.source["inner"]
    assert "changed" not in block.extra["unknown"]["inner"]


@given(json_objects())
def test_written_dict_shares_nothing_with_model(source):
    block = ImageBlock(source={"inner": source}, unknown=source)
    plain = to_dict(block)
    plain["source"]["inner"]["changed"] = plain["unknown"]["changed"] = True
    assert "changed" not in block.source["inner"]
    assert "changed" not in block.extra["unknown"]


# ── numbers, times, odd types ──


@pytest.mark.parametrize(
    "number",
    [
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        -(2**63) - 1,
        2**200,
        -(10**4299),
        10**308,
        10**309,
        10**4299,
    ],
)
def test_integers_of_any_size_are_exact(number):
    for value in (
        ToolResult(output=[number]),
        Usage(input_tokens=number, output_tokens=0, total_tokens=0),
        TextBlock(text="", n=number),
    ):
        text = to_json(value)
        assert str(number) in text
        assert from_json(type(value), text) == value
        assert to_json(from_json(type(value), text)) == text
        assert from_dict(type(value), to_dict(value)) == value


@pytest.mark.parametrize(
    "number", [0.1, 1e16, 1e22, 1.5e300, -1e19, 5e-324, -0.0, 1e-7, 123456789.125]
)
def test_floats_are_exact_and_stay_floats(number):
    value = ToolResult(output=[number])
    again = from_json(ToolResult, to_json(value)).output[0]
    assert (repr(again), type(again)) == (repr(number), float)
    assert to_json(from_json(ToolResult, to_json(value))) == to_json(value)


def test_numbers_beside_large_integer_keep_form():
    # orjson has written 1e22 in two forms over its versions.
    floats = to_json([1e22, 0.1])[1:-1]
    text = f'{{"success":true,"output":[{floats},123456789012345678901234567890,5]}}'
    assert to_json(from_json(ToolResult, text)) == text


def test_whole_number_in_float_field():
    request = from_json(ChatRequest, '{"messages":[],"temperature":1,"timeout":"2.5"}')
    assert to_json(request) == '{"messages":[],"temperature":1.0,"stream":false,"timeout":2.5}'


def test_last_duplicate_key_wins():
    assert from_json(TextBlock, '{"type":"text","text":"a","text":"b","x":1,"x":2}') == TextBlock(
        text="b", x=2
    )
    assert from_json(
        TextBlock, '{"text":"a","text":"b","x":1,"x":100000000000000000000}'
    ).extra == {"x": 10**20}


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    at: datetime.date


@attrs.define
class Holder:
    usage: Usage
    blocks: list[ContentBlockUnion]
    number: int = 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Decimal("1.10"), "1.10"),
        (datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC), "2024-01-02T03:00:00+00:00"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.time(1, 2), "01:02:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, datetime.date(2024, 1, 2)), {"x": 1, "at": "2024-01-02"}),
    ],
)
def test_values_with_obvious_json_form(value, expected):
    assert to_dict(ToolResult(output=[value]))["output"] == [expected]
    assert json.loads(to_json(ToolResult(output=[value])))["output"] == [expected]


@pytest.mark.parametrize(
    "value", [{1}, b"x", object(), 1j, range(3), Decimal("NaN"), lambda: 1, TextBlock]
)
def test_values_without_json_form_are_refused(value):
    for write in (to_json, to_dict):
        with pytest.raises(ModelError) as caught:
            write(ToolResult(output={"a": [0, value]}))
        assert [path for path, _ in caught.value.problems] == ["output.a[1]"]
        assert "ToolResult cannot be written as JSON" in str(caught.value)


def test_foreign_class_may_hold_models():
    holder = Holder(
        usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        blocks=[TextBlock(text="x"), UnknownBlock(type="?")],
    )
    assert from_json(Holder, to_json(holder)) == holder
    assert from_json(list[Holder], to_json([holder])) == [holder]
    data = {
        "usage": {"input_tokens": "x"},
        "blocks": [{"type": "text", "text": 1}],
        "number": "many",
    }
    with pytest.raises(ModelError) as caught:
        from_dict(list[Holder], [data, {}])
    assert [path for path, _ in caught.value.problems] == [
        "[0].usage.input_tokens",
        "[0].usage.output_tokens",
        "[0].usage.total_tokens",
        "[0].blocks[0].text",
        "[0].number",
        "[1].usage",
        "[1].blocks",
    ]


def test_problem_path_through_foreign_class():
    holder = Holder(
        usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        blocks=[TextBlock(text="x", a=[float("nan")])],
    )
    for written in (to_json, to_dict):
        with pytest.raises(ModelError) as caught:
            written(holder)
        assert [path for path, _ in caught.value.problems] == ["blocks[0].a[0]"]


def test_unreadable_type_is_model_error():
    with pytest.raises(ModelError):
        from_dict(ModelError, {})


def test_subclass_keeps_its_fields():
    @model
    class Answer(ChatResponse):
        text: str | None = None
        parts: list[Point] | None = None

    answer = Answer(content=[TextBlock(text="x")], text="t", vendor=1)
    assert to_json(answer) == '{"content":[{"type":"text","text":"x"}],"text":"t","vendor":1}'
    assert from_json(Answer, to_json(answer)) == answer
    assert to_dict(ToolResult(output=answer))["output"] == to_dict(answer)
    assert to_dict(Answer(content=[], parts=[Point(1, datetime.date(2024, 1, 2))]))["parts"] == [
        {"x": 1, "at": "2024-01-02"}
    ]


# ── problems ──


def test_every_problem_is_listed_with_its_path():
    data = {
        "messages": [
            {
                "role": "me",
                "content": [{"type": "text", "text": 5}, {"type": "image"}, {"text": "x"}],
            },
            {"content": None, "metadata": []},
            7,
        ],
        "tools": [{"name": "t"}],
        "max_output_tokens": "many",
        "stop": ["a", 1],
        "tool_choice": 5,
        "stream": "perhaps",
        "response_format": {"type": "json_schema"},
    }
    roles = (
        "expected one of 'system', 'developer', 'user', 'assistant', 'function', 'tool', got 'me'"
    )
    assert problems_of(ChatRequest, data) == [
        ("messages[0].role", roles),
        ("messages[0].content[0].text", "expected str, got int"),
        ("messages[0].content[1].source", "required, but missing"),
        ("messages[0].content[2].type", "required, but missing"),
        ("messages[1].role", "required, but missing"),
        ("messages[1].content", "expected str or list, got None"),
        ("messages[1].metadata", "expected dict, got list"),
        ("messages[2]", "expected Message or dict, got int"),
        ("tools[0].parameters", "required, but missing"),
        ("response_format.json_schema", "required, but missing"),
        ("max_output_tokens", "expected int, got the str 'many'"),
        ("stream", "expected bool, got the str 'perhaps'"),
        ("tool_choice", "expected str or dict, got int"),
        ("stop[1]", "expected str, got int"),
    ]


def test_error_reads_like_sentence():
    with pytest.raises(ModelError) as caught:
        from_json(ToolCall, '{"id":1,"name":"n","arguments":{}}')
    assert str(caught.value) == "ToolCall: id: expected str, got int"
    with pytest.raises(ModelError) as caught:
        from_json(list[ToolCall], "[[]]")
    assert caught.value.problems == [("[0]", "expected ToolCall or dict, got list")]


@pytest.mark.parametrize("name", ["a b", "", "a.b", "1", "ü", "x" * 500])
def test_odd_keys_are_quoted_in_paths(name):
    with pytest.raises(ModelError) as caught:
        to_json(ToolResult(output={name: {1}}))
    ((path, _),) = caught.value.problems
    assert path.startswith("output")
    assert len(path) < 100
