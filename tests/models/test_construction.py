"""How a model is built: keywords only, nested dicts coerced, containers copied, every problem named with its path."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections import OrderedDict, deque
from decimal import Decimal
from enum import Enum
from types import MappingProxyType

import attrs
import pytest
from hypothesis import given

from amplifier.conformance.strategies import instances
from amplifier.errors import ModelError
from amplifier.models import (
    ApprovalRequest,
    ApprovalResponse,
    ChatRequest,
    ChatResponse,
    ConfigField,
    ContextInjection,
    HookResult,
    ImageBlock,
    Message,
    Model,
    ModelInfo,
    OpenModel,
    Pricing,
    ResponseFormatJsonSchema,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
    Usage,
    from_json,
    to_json,
)
from amplifier.models.base import model
from tests.models.test_fields import model_classes


class Word(str, Enum):  # noqa: UP042  # the kind of enum that compares equal to its text
    USER = "user"


class Index:
    def __index__(self) -> int:
        return 7


def problems_of(cls: type[Model], **fields: object) -> list[tuple[str, str]]:
    with pytest.raises(ModelError) as caught:
        cls(**fields)
    assert isinstance(caught.value, ValueError)
    return caught.value.problems


# ── keywords ──


@pytest.mark.parametrize("cls", model_classes())
def test_positional_arguments_error_shows_keywords(cls):
    with pytest.raises(
        TypeError, match=rf"{cls.__name__} takes keyword arguments only, for example"
    ):
        cls("anything")


def test_everything_missing_is_listed_at_once():
    assert problems_of(ToolCall) == [
        ("id", "required, but missing"),
        ("name", "required, but missing"),
        ("arguments", "required, but missing"),
    ]
    assert problems_of(ToolResultBlock, tool_call_id="x") == [("output", "required, but missing")]


def test_unknown_keywords_by_model_kind():
    """Open models keep unknown keywords, closed models ignore them."""
    assert Message(role="user", content="hi", tool_calls=[1]).extra == {"tool_calls": [1]}
    assert HookResult(action="continue", metadata={"x": 1}) == HookResult()
    assert not hasattr(HookResult(metadata=1), "metadata")


@pytest.mark.parametrize(
    "name", ["self", "cls", "extra", "_positional", "_coercion", "_unknown", "a b", ""]
)
def test_unknown_keywords_are_kept(name):
    assert TextBlock(**{"text": "x", name: 1}).extra == {name: 1}


def test_unknown_attribute_cannot_be_set():
    for value in (HookResult(), TextBlock(text="x")):
        with pytest.raises(AttributeError):
            value.nonsense = 1


# ── coercion ──


def test_nested_dicts_become_models():
    request = ChatRequest(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"a": 1}}]}
        ],
        tools=[{"name": "t", "parameters": {}}],
        response_format={"type": "json_schema", "json_schema": {"type": "object"}},
    )
    assert request.messages == [
        Message(role="user", content=[TextBlock(text="hi", cache_control={"a": 1})])
    ]
    assert request.tools == [ToolSpec(name="t", parameters={})]
    assert request.response_format == ResponseFormatJsonSchema(json_schema={"type": "object"})
    assert ModelInfo(
        id="m",
        display_name="M",
        context_window=1,
        max_output_tokens=1,
        pricing={"input_per_million": 1, "output_per_million": -2},
    ).pricing == Pricing(input_per_million=1.0, output_per_million=-2.0)


FIELDS = {
    "int": (Usage, "input_tokens", {"output_tokens": 1, "total_tokens": 1}),
    "float": (ChatRequest, "temperature", {"messages": []}),
    "bool": (ApprovalResponse, "approved", {}),
    "str": (TextBlock, "text", {}),
    "Decimal": (Usage, "cost_usd", {"input_tokens": 1, "output_tokens": 1, "total_tokens": 1}),
}
"""A field of each kind, and what else its model needs."""

STORED = {
    "int": [
        (5, 5),
        ("5", 5),
        (" 5 ", 5),
        ("+5", 5),
        ("5.0", 5),
        ("1_000", 1000),
        (True, 1),
        (5.0, 5),
        (Decimal(5), 5),
        (Index(), 7),
    ],
    "float": [(1, 1.0), ("0.5", 0.5), (True, 1.0), (Decimal("0.5"), 0.5), (Index(), 7.0)],
    "bool": [
        (True, True),
        (1, True),
        (0, False),
        (0.0, False),
        ("yes", True),
        ("OFF", False),
        ("t", True),
        ("n", False),
    ],
    "Decimal": [
        ("0.10", Decimal("0.10")),
        (3, Decimal(3)),
        (Decimal("-1.5"), Decimal("-1.5")),
        (None, None),
    ],
}

REFUSED = {
    "int": [
        1.5,
        "1.5",
        "x",
        "",
        None,
        [],
        float("nan"),
        float("inf"),
        Decimal("1E+999999999"),
        "1" * 9999,
    ],
    "float": ["warm", [], {}, b"1", 10**400],
    "bool": [2, "maybe", None, [], 0.5, "true " * 100],
    "str": [5, 5.0, True, b"x", None, ["x"]],
    "Decimal": [0.5, "NaN", "Infinity", Decimal("sNaN"), "a lot", True, []],
}


def shown(value: object) -> str:
    return f"{value!r:.20}"


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [(kind, value, stored) for kind, pairs in STORED.items() for value, stored in pairs],
    ids=shown,
)
def test_equivalent_value_is_converted_to_field_type(kind, value, stored):
    cls, name, others = FIELDS[kind]
    found = getattr(cls(**others, **{name: value}), name)
    assert (str(found), found, type(found)) == (str(stored), stored, type(stored))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, value) for kind, values in REFUSED.items() for value in values],
    ids=shown,
)
def test_value_of_wrong_type_is_refused(kind, value):
    cls, name, others = FIELDS[kind]
    ((path, problem),) = problems_of(cls, **others, **{name: value})
    assert path == name
    assert kind == "Decimal" or problem.startswith(f"expected {kind}, got ")
    assert len(problem) < 120
    if kind == "str":
        assert problem == f"expected str, got {'None' if value is None else type(value).__name__}"


def test_str_enum_member_becomes_its_value():
    role = Message(role=Word.USER, content="x").role
    assert (role, type(role)) == ("user", str)


@pytest.mark.parametrize("value", ["bogus", "", 5, None, ["continue"], {}])
def test_wrong_word_is_refused(value):
    ((path, problem),) = problems_of(HookResult, action=value)
    assert path == "action"
    assert problem.startswith("expected one of 'continue', 'deny', ")


def test_block_rejects_type_of_another():
    assert problems_of(TextBlock, text="x", type="image") == [
        ("type", "expected 'text', got 'image'")
    ]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_approval_timeout_is_positive_or_none(timeout):
    with pytest.raises(ModelError, match="timeout: expected seconds greater than 0, or None"):
        ApprovalRequest(tool_name="t", action="a", risk_level="low", timeout=timeout)
    assert (
        ApprovalRequest(tool_name="t", action="a", risk_level="any text", timeout=None).timeout
        is None
    )


@pytest.mark.parametrize("currency", ["usd", "USDT", "", "€€€", "U D"])
def test_currency_is_three_capitals(currency):
    with pytest.raises(
        ModelError, match="currency: expected a currency code of three capital letters"
    ):
        Pricing(input_per_million=1, output_per_million=1, currency=currency)


def test_text_maps_hold_text_only():
    fields = {"id": "i", "display_name": "d", "prompt": "p"}
    assert ConfigField(**fields, show_when={"a": "b"}).show_when == {"a": "b"}
    assert problems_of(ConfigField, **fields, show_when={"a": 1, 2: "x"}, choices=["a", 1]) == [
        ("choices[1]", "expected str, got int"),
        ("show_when.a", "expected str, got int"),
        ("show_when", "expected str keys, got the int key 2"),
    ]


# ── copies ──


def test_containers_are_copied_shallowly():
    inner = {"deep": 1}
    block, arguments, content = TextBlock(text="x"), {"a": inner}, []
    content.append(block)
    message, call = (
        Message(role="user", content=content),
        ToolCall(id="1", name="n", arguments=arguments),
    )
    content.append("more")
    arguments["b"] = 2
    assert message.content == [block]
    assert message.content[0] is block
    assert call.arguments == {"a": inner}
    assert call.arguments["a"] is inner


@pytest.mark.parametrize("make", [tuple, deque, list])
def test_other_sequences_become_lists(make):
    assert Message(role="user", content=make([TextBlock(text="x")])).content == [
        TextBlock(text="x")
    ]
    assert ThinkingBlock(thinking="x", content=make([1])).content == [1]


@pytest.mark.parametrize("make", [OrderedDict, MappingProxyType, dict])
def test_other_mappings_become_dicts(make):
    source = ImageBlock(source=make({"type": "url"})).source
    assert (source, type(source)) == ({"type": "url"}, dict)
    assert ChatResponse(content=[make({"type": "text", "text": "x"})]).content == [
        TextBlock(text="x")
    ]


def test_defaults_are_never_shared():
    first, second = HookResult(), HookResult()
    first.context_injections.append(ContextInjection(content="x"))
    assert second.context_injections == []


@given(instances(Message))
def test_copy_is_equal_and_independent(message):
    for copied in (
        copy.copy(message),
        copy.deepcopy(message),
        pickle.loads(pickle.dumps(message)),
        attrs.evolve(message),
    ):
        assert copied == message
        assert copied is not message
        copied.extra["new"] = 1
        copied.metadata = {"changed": True}
        assert "new" not in message.extra
        assert message.metadata != {"changed": True}


def test_shallow_and_deep_copy():
    message = Message(role="user", content=[TextBlock(text="x")], metadata={"a": [1]})
    shallow, deep = copy.copy(message), copy.deepcopy(message)
    shallow.content.append("y")
    deep.content[0].text = "changed"
    deep.metadata["a"].append(2)
    assert message == Message(role="user", content=[TextBlock(text="x")], metadata={"a": [1]})
    assert shallow.content[0] is message.content[0]


def test_evolve_keeps_unknown_members():
    message = Message(role="user", content="x", vendor=1)
    assert attrs.evolve(message, role="tool", other=2).extra == {"vendor": 1, "other": 2}


# ── values ──


def test_models_are_mutable_and_unhashable():
    block = TextBlock(text="x")
    block.text = "y"
    assert block == TextBlock(text="y")
    with pytest.raises(TypeError):
        hash(block)


def test_repr_shows_fields_then_unknown_members():
    assert (
        repr(ApprovalResponse(approved=True))
        == "ApprovalResponse(approved=True, reason=None, remember=False)"
    )
    assert (
        repr(TextBlock(text="x", odd=[1]))
        == "TextBlock(type='text', text='x', visibility=None, extra={'odd': [1]})"
    )
    assert repr(UnknownBlock(odd=1, type="x")) == "UnknownBlock(type='x', extra={'odd': 1})"


def test_models_support_weak_references():
    for make in (HookResult, lambda: TextBlock(text="x")):
        value = make()
        reference = weakref.ref(value)
        assert reference() is value
        del value
        gc.collect()
        assert reference() is None


# ── subclasses ──


def test_subclass_adds_fields():
    @model
    class Answer(ChatResponse):
        text: str | None = None
        parts: list[ModelInfo] = []  # noqa: RUF012  # what published modules write

    first, second = Answer(content=[], text="x", vendor=1), Answer(content=[])
    first.parts.append(1)
    assert (first.text, first.extra, second.parts) == ("x", {"vendor": 1}, [])
    assert isinstance(first, ChatResponse)
    assert first != ChatResponse(content=[], vendor=1)


def test_bare_subclass_becomes_model_in_place():
    class Answer(ChatResponse):
        text: str | None = None
        unresolved: NoSuchType | None = None  # noqa: F821

    made = model(slots=False)(Answer)
    assert made is Answer
    answer = Answer(content=[{"type": "text", "text": "x"}], text="t", unresolved=3)
    assert (answer.content, answer.text, answer.unresolved) == ([TextBlock(text="x")], "t", 3)
    assert problems_of(Answer, content=[], text=5) == [("text", "expected str, got int")]


def test_methods_attached_to_base_later():
    OpenModel.shout = lambda self: type(self).__name__.upper()
    try:
        assert TextBlock(text="x").shout() == "TEXTBLOCK"
        assert not hasattr(HookResult(), "shout")
    finally:
        del OpenModel.shout
    assert not hasattr(TextBlock(text="x"), "shout")


def test_base_setattr_replaced_later():
    """An extended base can catch attributes that are set on open models."""

    def keep_unknown(self, name, value):
        known = {field.name for field in attrs.fields(type(self))}
        if name in known:
            object.__setattr__(self, name, value)
        else:
            self.extra[name] = value

    OpenModel.__setattr__ = keep_unknown
    try:
        message = Message(role="user", content="x")
        message.tool_calls = [1]
        assert from_json(Message, to_json(message)).extra == {"tool_calls": [1]}
    finally:
        del OpenModel.__setattr__
    with pytest.raises(AttributeError):
        message.other = 1
