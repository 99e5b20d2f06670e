"""The fast way through the converter gives what the careful way gives, or stands aside."""

from __future__ import annotations

import enum
import json
import math
import uuid
from decimal import Decimal
from typing import Any, Literal

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.conformance.strategies import instances, json_values
from amplifier.errors import ModelError
from amplifier.models import (
    ChatRequest,
    Message,
    OpenModel,
    TextBlock,
    ToolCallBlock,
    ToolResult,
    ToolResultBlock,
    Usage,
    to_dict,
    to_json,
)
from amplifier.models._codec.fast_reader import READERS
from amplifier.models._codec.fast_writer import copied, encode, write
from amplifier.models._codec.plain_values import (
    MANY_CONTAINERS,
    MAX_DEPTH,
    Decline,
    PlainWalk,
    is_writable_size,
    vet,
    vetted,
)
from amplifier.models._codec.strict_reader import read_carefully
from amplifier.models._definition.base import model
from amplifier.models._definition.field_types import shape_of
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


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_the_depth_of_many_values_is_judged_to_the_level():
    assert is_writable_size([nested(1), nested(MAX_DEPTH - 1)])
    assert not is_writable_size([nested(1), nested(MAX_DEPTH + 1)])


def test_values_that_are_endless_or_grow_exponentially_are_not_judged_at_once():
    bomb: Any = [1]
    for _ in range(40):
        bomb = {"a": bomb, "b": bomb}
    circle: list[Any] = []
    circle.append(circle)
    wide: list[Any] = []
    wide.extend([wide] * 990)
    many = [[[]]] * MANY_CONTAINERS
    shared = [[[[]] * 500] * 500]
    for odd in (bomb, circle, wide, many, shared):
        assert not is_writable_size([{"fine": [1]}, odd])
    assert is_writable_size([["leaf"] * (MANY_CONTAINERS + 1)])


class Living:
    """Python 3.13 keeps the attributes of a living object where a walk over references does not see them."""

    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": [math.nan]}], ids=repr)
@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: [it], lambda it: {"a": {"b": [it]}}], ids="012")
def test_the_attributes_of_a_living_object_are_looked_at(value, wrap):
    living = Living(value)
    with pytest.raises(ModelError):
        to_json(ToolResult(output=wrap(vars(living))))
    deep = Living(nested(MAX_DEPTH + 50))
    with pytest.raises(ModelError):
        to_json(ToolResult(output=wrap(vars(deep))))
    assert json.loads(to_json(ToolResult(output=wrap(vars(Living([1, "x"]))))))["output"] == wrap({"value": [1, "x"]})


@pytest.mark.parametrize("shared", [[[[]] * 500] * 500, [[["x"]] * 990] * 990], ids=["lists", "texts"])
def test_text_and_values_agree_about_parts_that_are_used_often(shared):
    for written in (to_json, to_dict):
        with pytest.raises(ModelError, match=r"100,000|same parts"):
            written(ToolResult(output=shared))


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "odd",
    [
        math.nan,
        math.inf,
        -math.inf,
        (1, [2]),
        {1},
        b"",
        object(),
        Colour.RED,
        Word("x"),
        uuid.uuid4(),
        Decimal("0.1"),
        TextBlock(text="x"),
    ],
)
def test_one_odd_value_anywhere_among_many_is_noticed(odd):
    fine: Any = {"a": [1, {"b": "c"}], "d": 0.5, "e": [0.25, None, True], "f": {}, "g": "null"}
    assert encode(TextBlock(text="x", unknown=[fine, [[]], {}, 0.5, "x", fine]))
    for value in (
        odd,
        [odd],
        {"a": odd},
        {"a": 1, "b": [0.5, odd]},
        [{"a": "b", "c": odd}],
        {"a": {"b": [{"c": odd}]}},
    ):
        with pytest.raises((Decline, TypeError)):
            encode(TextBlock(text="x", unknown=[fine, value, fine]))
        with pytest.raises((Decline, TypeError)):
            encode(TextBlock(text="x", unknown=value))
        with pytest.raises((Decline, TypeError)):
            encode(Message(role="tool", content=[ToolResultBlock(tool_call_id="1", output=value)]))


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


# ── models written in the loop over their list ──


@model
class Leaf(OpenModel):
    """Has every name that a writer uses itself."""

    model0: str
    plain0: str
    value: str
    free: dict[str, Any]
    kind: str | None = None
    extra0: str | None = None


@model
class Branch(OpenModel):
    model: str
    written1: list[Leaf]
    leaves: list[Leaf] | None = None


def leaf(**more: Any) -> Leaf:
    return Leaf(model0="m", plain0="p", value="v", free={"f": [1]}, **more)


def test_names_of_fields_do_not_meet_those_of_the_writer():
    branch = Branch(model="b", written1=[leaf(), leaf(kind="k")], leaves=[leaf(x={"y": 0.5})])
    plain = {"model0": "m", "plain0": "p", "value": "v", "free": {"f": [1]}}
    expected = {"model": "b", "written1": [plain, {**plain, "kind": "k"}], "leaves": [{**plain, "x": {"y": 0.5}}]}
    assert encode(branch) == orjson.dumps(expected)
    assert write(branch) == expected


def test_a_subclass_in_a_list_is_written_with_its_own_fields():
    @model
    class Loud(TextBlock):
        volume: int

    message = Message(role="user", content=[TextBlock(text="a"), Loud(text="b", volume=3), TextBlock(text="c")])
    assert [block.get("volume") for block in write(message)["content"]] == [None, 3, None]
    assert encode(message) == orjson.dumps(written_carefully(message))


@pytest.mark.parametrize("stranger", [None, "x", 1, 0.5, {"type": "text", "text": "x"}, [], object(), TextBlock])
def test_what_is_no_model_in_a_list_of_models_is_declined(stranger):
    for message in (Message(role="user", content=[TextBlock(text="x")]), Message(role="user", content=[])):
        message.content.append(stranger)
        request = ChatRequest(messages=[message])
        for writing in (encode, write):
            with pytest.raises(Decline):
                writing(message)
            with pytest.raises(Decline):
                writing(request)


@pytest.mark.parametrize("odd", [5, None, 0.5, math.nan, ["x"], Word("x"), Colour.RED, orjson.Fragment(b"no JSON")])
def test_a_declared_text_that_is_something_else_is_declined_in_every_loop(odd):
    block = TextBlock(text="x")
    block.text = odd
    message = Message(role="user", content=[TextBlock(text="x"), block])
    for value in (block, message, ChatRequest(messages=[message])):
        for writing in (encode, write):
            with pytest.raises(Decline):
                writing(value)


def test_unknown_members_with_declared_names_are_left_to_the_careful_way():
    block = TextBlock(text="x", a=1)
    block.extra["text"] = "y"
    with pytest.raises(Decline):
        encode(Message(role="user", content=[block]))
    assert to_json(block) == '{"type":"text","text":"x","a":1}'
    block.extra = [("a", 1)]
    with pytest.raises(Decline):
        encode(block)
