"""The fast way through the converter gives what the careful way gives, or stands aside."""

from __future__ import annotations

import json
from typing import Any, Literal

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.conformance.strategies import instances, json_values
from amplifier.models import (
    ChatRequest,
    Message,
    OpenModel,
    TextBlock,
    ToolCallBlock,
    ToolResult,
    ToolResultBlock,
    Usage,
    to_json,
)
from amplifier.models._base import model
from amplifier.models._fast_reading import READERS
from amplifier.models._fast_writing import copied, encode, write
from amplifier.models._plain import MAX_DEPTH, Decline, PlainWalk, is_writable_size, may_hide_nan, vet, vetted
from amplifier.models._reading import read_carefully
from amplifier.models._shapes import shape_of
from tests.models.test_fields import model_classes

ORDINARY = ChatRequest(
    messages=[
        Message(role="user", content="hi"),
        Message(
            role="assistant",
            content=[
                TextBlock(text="x", vendor={"a": [1, 0.5, None]}),
                ToolCallBlock(id="1", name="n", input={"p": "q"}),
            ],
            metadata={"turn": 1},
        ),
        Message(
            role="tool", content=[ToolResultBlock(tool_call_id="1", output={"lines": ["a", "b"]})], tool_call_id="1"
        ),
        Message(role="user", content=[{"type": "hologram", "depth": 3}], vendor=True),
    ],
    tools=[{"name": "n", "parameters": {"type": "object"}}],
    temperature=0.5,
    stop=["x"],
    tool_choice={"type": "auto"},
)


def written_carefully(value: Any) -> Any:
    problems: list[tuple[str, str]] = []
    plain = PlainWalk(problems, large_int=orjson.Fragment).start(value)
    assert problems == []
    return plain


@given(cls=st.sampled_from(model_classes()), data=st.data())
def test_writing_fast_is_writing_carefully(cls, data):
    value = data.draw(instances(cls))
    careful = orjson.dumps(written_carefully(value))
    try:
        fast, plain = encode(value), write(value)
    except (Decline, TypeError):
        assert to_json(value).encode() == careful
    else:
        assert fast == careful
        assert orjson.dumps(plain) == careful


@given(cls=st.sampled_from(model_classes()), data=st.data())
def test_reading_fast_is_reading_carefully(cls, data):
    plain = orjson.loads(to_json(data.draw(instances(cls))))
    try:
        fast = READERS[cls](plain)
    except Decline:
        return
    careful = read_carefully(shape_of(cls), plain, "test")
    assert fast == careful
    assert to_json(fast) == to_json(careful)


def test_an_ordinary_request_takes_the_fast_way():
    text = encode(ORDINARY)
    assert READERS[ChatRequest](orjson.loads(text)) == ORDINARY
    assert write(ORDINARY) == json.loads(text)
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3, cost_usd="0.1")
    assert encode(usage) == b'{"input_tokens":1,"output_tokens":2,"total_tokens":3,"cost_usd":"0.1"}'


def test_reading_into_a_subclass_of_a_block_keeps_to_the_class_asked_for():
    assert type(READERS[TextBlock]({"text": "x"})) is TextBlock
    with pytest.raises(Decline):
        READERS[TextBlock]({"type": "image", "text": "x"})
    with pytest.raises(Decline):
        READERS[TextBlock]({"type": "text"})


@given(json_values())
def test_exact_values_are_vetted_and_copied(value):
    tame = json.loads(
        json.dumps(value), parse_int=lambda digits: int(digits) % 2**53, parse_float=lambda text: float(text) % 1e15
    )
    assert vetted(tame) is tame
    duplicate = copied(tame)
    assert duplicate == tame
    assert duplicate is not tame or not isinstance(tame, (dict, list))


@pytest.mark.parametrize(
    "odd", [(), {1}, b"", 1e300, float("nan"), float("-inf"), object(), TextBlock(text="x"), 2.0**63 * -1, 2.0**64]
)
def test_odd_values_are_declined(odd):
    for value in ([odd], {"a": odd}, [[{"b": [odd]}]]):
        with pytest.raises(Decline):
            vet(value)
    with pytest.raises(Decline):
        vetted(odd)


def test_the_size_of_values_is_judged_without_looking_at_leaves():
    deep: Any = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    bomb: Any = [1]
    for _ in range(40):
        bomb = {"a": bomb, "b": bomb}
    circle: list[Any] = []
    circle.append(circle)
    assert is_writable_size([{"a": [1, {"b": "c"}]}, [[]], {}, 0.5, "x"])
    for odd in (deep, bomb, circle, [TextBlock(text="x")], [(1, [2])]):
        assert not is_writable_size([{"fine": [1]}, odd])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([None], True),
        ({"a": None}, True),
        ([1, float("nan")], True),
        ({"a": float("inf")}, True),
        (["null", "a null, b", "x=null", "nullnull"], False),
        ([json.dumps({"a": None}, separators=(",", ":"))], False),
        (["[null]"], True),  # a false alarm only costs time
        ([], False),
    ],
)
def test_a_null_in_the_text_is_a_reason_to_look_closer(value, expected):
    assert may_hide_nan(orjson.dumps(value)) is expected


def test_a_tool_result_is_read_by_the_careful_reader_because_it_has_rules():
    with pytest.raises(Decline):
        READERS[ToolResult]({"success": True})


def test_hidden_attributes_and_types_of_several_words_are_read_fast():
    @model
    class Note(OpenModel):
        type: Literal["note", "memo"] = "note"
        _weight: int = attrs.field(default=3, init=False)

    @model
    class Other(OpenModel):
        type: Literal["other"] = "other"

    read = READERS[Note | Other]
    for word in ("note", "memo"):
        note = read({"type": word, "x": 1})
        assert (note, note._weight) == (Note(type=word, x=1), 3)
    with pytest.raises(Decline):
        read({"type": "letter"})
