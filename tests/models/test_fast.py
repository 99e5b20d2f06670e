"""The generated readers and writers give what the strict reader and the complete conversion give, or decline."""

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
    Model,
    OpenModel,
    SessionStatus,
    TextBlock,
    ToolCallBlock,
    ToolResult,
    ToolResultBlock,
    Usage,
    from_dict,
    from_json,
    to_dict,
    to_json,
)
from amplifier.models._codec.fast_reader import READERS
from amplifier.models._codec.fast_writer import encode
from amplifier.models._codec.plain_values import (
    MANY_CONTAINERS,
    MAX_DEPTH,
    Decline,
    JsonConversion,
    is_writable_size,
    vet,
    vetted,
)
from amplifier.models._codec.strict_reader import read_strictly
from amplifier.models._definition.decorator import model
from amplifier.models._definition.field_types import field_type_of
from tests.models.test_fields import model_classes
from tests.models.test_hostile import WRONG, every_path, removed, replaced

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


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    __slots__ = ()


@model
class Loud(TextBlock):
    """A subclass with a field of its own."""

    volume: int = 1


@model
class Leaf(OpenModel):
    """Has every name that a writer uses itself."""

    model: str
    plain: str
    value: str
    free: dict[str, Any]
    member: str | None = None
    written: str | None = None


@model
class Branch(OpenModel):
    field_value: str
    members: list[Leaf]
    leaves: list[Leaf] | None = None


@model
class Tree(Model):
    """Holds instances of its own class."""

    children: list[Tree]
    child: Tree | None = None


CLASSES = [*model_classes(), Loud, Leaf, Branch]


def converted(value: Any) -> tuple[Any, list[tuple[str, str]]]:
    """The JSON values by the complete conversion, and the problems."""
    conversion = JsonConversion(large_int=orjson.Fragment)
    plain = conversion.convert(value)
    return plain, conversion.problems


def check_writing(value: Model) -> None:
    """The fast writer writes what the complete conversion gives, and never what that has a problem with."""
    plain, problems = converted(value)
    try:
        fast = encode(value)
    except (Decline, TypeError):
        fast = None
    if problems:
        assert fast is None
        for written in (to_json, to_dict):
            with pytest.raises(ModelError) as caught:
                written(value)
            assert caught.value.problems == problems
    else:
        text = orjson.dumps(plain)
        assert fast in (None, text)
        assert to_json(value).encode() == text
        assert to_json(to_dict(value)).encode() == text


def check_reading(cls: type[Model], plain: Any) -> None:
    """The fast reader builds what the strict reader builds, and never what that has a problem with."""
    try:
        fast = READERS[cls](plain)
    except Decline:
        return
    strict = read_strictly(field_type_of(cls), plain, "test")
    if isinstance(strict, SessionStatus) and "started_at" not in plain:
        fast.started_at = strict.started_at  # both are "now", at two moments
    assert fast == strict
    assert to_json(fast) == to_json(strict)


@given(cls=st.sampled_from(CLASSES), data=st.data())
def test_the_fast_writer_and_the_conversion_agree(cls, data):
    check_writing(data.draw(instances(cls)))


@given(cls=st.sampled_from(CLASSES), data=st.data())
def test_the_fast_writer_and_the_conversion_agree_about_wrong_values(cls, data):
    value = data.draw(instances(cls))
    name = data.draw(st.sampled_from([attribute.name for attribute in attrs.fields(cls)]))
    wrong = data.draw(st.sampled_from([*WRONG, math.nan, (1,), {1}, b"", {1: 2}, "\ud800", Colour.RED, Word("x")]))
    object.__setattr__(value, name, {"unknown": wrong} if name == "extra" else wrong)
    check_writing(value)


@given(cls=st.sampled_from(CLASSES), data=st.data())
def test_the_fast_and_the_strict_reader_agree(cls, data):
    check_reading(cls, orjson.loads(to_json(data.draw(instances(cls)))))


@given(cls=st.sampled_from(CLASSES), data=st.data())
def test_the_fast_and_the_strict_reader_agree_about_wrong_values(cls, data):
    plain = orjson.loads(to_json(data.draw(instances(cls))))
    path = data.draw(st.sampled_from(every_path(plain)))
    check_reading(cls, replaced(plain, path, data.draw(st.sampled_from(WRONG) | json_values())))
    if path:
        check_reading(cls, removed(plain, path))


def test_a_model_that_holds_its_own_class_is_read_and_written():
    tree = Tree(children=[Tree(children=[])], child=Tree(children=[], child=Tree(children=[])))
    assert from_json(Tree, to_json(tree)) == tree
    assert from_dict(Tree, to_dict(tree)) == tree


def test_an_ordinary_request_takes_the_fast_way():
    text = encode(ORDINARY)
    assert READERS[ChatRequest](orjson.loads(text)) == ORDINARY
    assert to_dict(ORDINARY) == json.loads(text)
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
    duplicate = to_dict(tame)
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


def test_a_tool_result_is_left_to_the_strict_reader_because_it_has_rules():
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


def leaf(**more: Any) -> Leaf:
    return Leaf(model="m", plain="p", value="v", free={"f": [1]}, **more)


def test_names_of_fields_do_not_collide_with_those_of_the_writer():
    branch = Branch(field_value="b", members=[leaf(), leaf(member="k")], leaves=[leaf(x={"y": 0.5})])
    plain = {"model": "m", "plain": "p", "value": "v", "free": {"f": [1]}}
    expected = {
        "field_value": "b",
        "members": [plain, {**plain, "member": "k"}],
        "leaves": [{**plain, "x": {"y": 0.5}}],
    }
    assert encode(branch) == orjson.dumps(expected)
    assert to_dict(branch) == expected


def test_a_subclass_in_a_list_is_written_with_its_own_fields():
    message = Message(role="user", content=[TextBlock(text="a"), Loud(text="b", volume=3), TextBlock(text="c")])
    assert [block.get("volume") for block in to_dict(message)["content"]] == [None, 3, None]
    assert encode(message) == orjson.dumps(converted(message)[0])


@pytest.mark.parametrize("other", [None, "x", 1, 0.5, {"type": "text", "text": "x"}, [], object(), TextBlock])
def test_what_is_no_model_in_a_list_of_models_is_declined(other):
    for message in (Message(role="user", content=[TextBlock(text="x")]), Message(role="user", content=[])):
        message.content.append(other)
        request = ChatRequest(messages=[message])
        for value in (message, request):
            with pytest.raises(Decline):
                encode(value)


@pytest.mark.parametrize("odd", [5, None, 0.5, math.nan, ["x"], Word("x"), Colour.RED, orjson.Fragment(b"no JSON")])
def test_a_declared_text_that_is_something_else_is_declined_in_every_loop(odd):
    block = TextBlock(text="x")
    block.text = odd
    message = Message(role="user", content=[TextBlock(text="x"), block])
    for value in (block, message, ChatRequest(messages=[message])):
        with pytest.raises(Decline):
            encode(value)


def test_unknown_members_with_declared_names_are_declined():
    block = TextBlock(text="x", a=1)
    block.extra["text"] = "y"
    with pytest.raises(Decline):
        encode(Message(role="user", content=[block]))
    assert to_json(block) == '{"type":"text","text":"x","a":1}'
    block.extra = [("a", 1)]
    with pytest.raises(Decline):
        encode(block)
