"""The reader of foreign input: what is accepted, the paths of problems, and the schema come from one declaration."""

from __future__ import annotations

from typing import Any

import attrs
import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier._internal.reading import (
    any_text,
    choice,
    flag,
    keys_of,
    list_each,
    mapping_each,
    number,
    object_with,
    option,
    optional,
    read_record,
    record,
    schemas_of,
    seconds,
    whole_number,
)
from amplifier.errors import PlanError


@attrs.frozen(kw_only=True)
class Price:
    amount: float = option(number(0))
    unit: str = option(choice("token", "call"), "token")


@attrs.frozen(kw_only=True)
class Options:
    limit: int | None = option(
        optional(whole_number(0, 10), null="for no limit"), None, "How many."
    )
    is_loud: bool = option(flag, False, "Whether it shouts.", key="loud", aliases=("noisy",))
    prices: dict[str, Price] = option(
        mapping_each("prices by name", record(Price)), attrs.Factory(dict)
    )
    names: tuple[str, ...] = option(list_each("names", any_text), ())


def problems_of(given_: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    read_record(keys_of(Options), given_, "$", found)
    return found


def test_given_fields_are_read_others_default():
    given_ = {"limit": 3, "noisy": True, "prices": {"a": {"amount": 1}}, "names": ["x"]}
    problems: list[tuple[str, str]] = []
    values = read_record(keys_of(Options), given_, "$", problems)
    assert Options(**values) == Options(
        limit=3, is_loud=True, prices={"a": Price(amount=1)}, names=("x",)
    )
    assert read_record(keys_of(Options), {}, "$", problems) == {}
    assert problems == []


def test_every_problem_is_reported_with_its_path():
    given_ = {
        "limit": 11,
        "loud": "yes",
        "noisy": True,
        "prices": {"a": {"unit": "tokens"}, "b c": 5},
        "names": ["x", 7],
        "limt": 1,
        3: 4,
    }
    assert sorted(problems_of(given_), key=lambda problem: str(problem[0])) == [
        (
            "$.limit",
            "expected a whole number of at least 0 and at most 10, or null for no limit, got 11",
        ),
        ("$.limt", "unknown key; did you mean 'limit'?"),
        ("$.loud", "expected true or false, got 'yes'"),
        ("$.names[1]", "expected text, got 7"),
        ("$.noisy", "has the same meaning as $.loud; expected one of the two"),
        ("$.prices.a.amount", "is missing; expected a number of at least 0"),
        ("$.prices.a.unit", "expected one of 'token', 'call', got 'tokens'; did you mean 'token'?"),
        ("$.prices['b c']", "expected an object with amount, unit, got 5"),
        ("$[3]", "unknown key; known are limit, loud, noisy, prices, names"),
    ]


@pytest.mark.parametrize("kind", [number(), seconds, number(0, 1), whole_number(0, 5)])
@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), True, "1"])
def test_number_beyond_float_is_problem(kind, value):
    with pytest.raises(PlanError, match="expected"):
        kind.read(value)


def test_object_is_read_into_its_class():
    assert record(Options).read({"limit": 2, "loud": True}) == Options(limit=2, is_loud=True)
    with pytest.raises(PlanError) as caught:
        record(Options).read({"names": [1], "loud": 0})
    assert caught.value.problems == [
        ("$.names[0]", "expected text, got 1"),
        ("$.loud", "expected true or false, got 0"),
    ]


@attrs.frozen(kw_only=True)
class Call:
    call_id: str = option(any_text, key="id")


@attrs.frozen(kw_only=True)
class Sent:
    role: str = option(choice("user", "tool"))
    tool_call_id: str = option(any_text, "", aliases=("toolCallId",))
    calls: tuple[Call, ...] = option(
        list_each("calls", record(Call, is_open=True)), (), key="tool_calls"
    )


def test_request_body_with_aliases_and_unknown_members():
    messages = list_each("messages", record(Sent, is_open=True), least=1)
    body = [
        {"role": "user", "vendor": 1, "tool_calls": [{"id": "c", "type": "function"}]},
        {"role": "tool", "toolCallId": "c"},
    ]
    assert messages.read(body) == (
        Sent(role="user", calls=(Call(call_id="c"),)),
        Sent(role="tool", tool_call_id="c"),
    )
    with pytest.raises(PlanError) as caught:
        messages.read([{"role": "usr"}, {"tool_calls": [{"type": "function"}]}])
    assert caught.value.problems == [
        ("$[0].role", "expected one of 'user', 'tool', got 'usr'; did you mean 'user'?"),
        ("$[1].tool_calls[0].id", "is missing; expected text"),
        ("$[1].role", "is missing; expected one of 'user', 'tool'"),
    ]
    with pytest.raises(PlanError, match="expected a list of at least 1 messages"):
        messages.read([])


def test_keys_and_schemas_come_from_fields():
    assert list(keys_of(Options)) == ["limit", "loud", "noisy", "prices", "names"]
    schemas = schemas_of(Options)
    assert schemas["limit"] == {
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": 10,
        "default": None,
        "description": "How many.",
    }
    assert schemas["loud"] == {
        "type": "boolean",
        "default": False,
        "description": "Whether it shouts.",
    }
    assert schemas["prices"]["additionalProperties"]["required"] == ["amount"]


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.floats(allow_nan=False)
    | st.sampled_from(["token", "x"])
)
values = (
    leaves
    | st.lists(leaves, max_size=2)
    | st.dictionaries(st.sampled_from(["amount", "unit", "z"]), leaves)
)
KINDS = {
    "number": number(0),
    "whole": optional(whole_number(0, 10)),
    "choice": choice("token", "call"),
    "record": record(Price),
    "prices": mapping_each("prices", record(Price)),
    "object": object_with({"amount": number(), "unit": any_text}),
}


@pytest.mark.parametrize("name", KINDS)
@given(value=values | st.dictionaries(st.text(max_size=2), values, max_size=2))
def test_read_values_fit_schema(name, value):
    kind = KINDS[name]
    try:
        kind.read(value)
    except PlanError:
        return
    jsonschema_rs.validate(dict(kind.schema), value)
