"""A list that shares its members until it is read behaves as a list of copies, and the shared members never change."""

from __future__ import annotations

import copy
import json
import operator
import pickle
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier._json import copy_json
from amplifier.models import ChatRequest, Message, TextBlock, ToolCallBlock, from_json, to_dict, to_json
from amplifier.models._definition.shared_list import SharedList, detached, shared_members

SLICES = (slice(None), slice(1, None), slice(None, None, -1), slice(0, 2))
"""Of every kind: all, a part, backwards."""


def dicts() -> list[dict[str, Any]]:
    return [{"at": at, "inner": {"list": [at, {"deep": at}]}} for at in range(4)]


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, dict | list | tuple):
        for child in list(value.values()) if isinstance(value, dict) else list(value):
            spoil(child)
    if isinstance(value, dict):
        value["spoiled"] = True
    elif isinstance(value, list):
        value.append("spoiled")


def by_at(value: Any) -> int:
    return -value["at"] if isinstance(value, dict) else 0


READS: dict[str, Any] = {
    "iterate": list,
    "unpack": lambda values: [*values],
    "tuple": lambda values: tuple(values)[:9],
    "reversed": lambda values: list(reversed(values)),
    "first": operator.itemgetter(0),
    "last": operator.itemgetter(-1),
    **{f"slice {at}": operator.itemgetter(part) for at, part in enumerate(SLICES)},
    "plus list": lambda values: operator.add(values, [{"at": 9}]),
    "list plus": lambda values: operator.add([{"at": 9}], values),
    "plus itself": lambda values: operator.add(values, values),
    "times": lambda values: values * 2,
    "times from the left": lambda values: 2 * values,
    "copy method": lambda values: values.copy(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda values: pickle.loads(pickle.dumps(values)),
    "sorted": lambda values: sorted(values, key=by_at),
    "extend another": lambda values: _extended([], values),
    "slice of another": lambda values: _spliced([], values),
    "filter": lambda values: list(filter(None, values)),
    "zip": lambda values: [pair[0] for pair in zip(values, values, strict=True)],
    "pattern": lambda values: _matched(values)[::-1],
    "json": lambda values: json.loads(json.dumps(values)),
    "orjson": lambda values: orjson.loads(orjson.dumps(values)),
    "length": len,
    "truth": bool,
    "contains": lambda values: dicts()[1] in values,
    "index": lambda values: values.index(dicts()[2]) if dicts()[2] in values else None,
    "count": lambda values: values.count(dicts()[0]),
    "equal": lambda values: values == dicts(),
    "repr": repr,
}

CHANGES: dict[str, Any] = {
    "append": lambda values: values.append({"at": 7}),
    "extend": lambda values: values.extend([{"at": 7}, {"at": 8}]),
    "insert": lambda values: values.insert(1, {"at": 7}),
    "set": lambda values: operator.setitem(values, slice(0, 1), [{"at": 7}]),
    "delete": lambda values: operator.delitem(values, slice(0, 1)),
    "pop": lambda values: values.pop() if values else None,
    "remove": lambda values: values.remove(values[0]) if values else None,
    "sort": lambda values: values.sort(key=by_at),
    "reverse": lambda values: values.reverse(),
    "clear": lambda values: values.clear(),
    "add in place": lambda values: operator.iadd(values, [{"at": 7}]),
    "multiply in place": lambda values: operator.imul(values, 2),
}


def _extended(values: list[Any], more: list[Any]) -> list[Any]:
    values.extend(more)
    values += more
    return values


def _spliced(values: list[Any], more: list[Any]) -> list[Any]:
    values[:] = more
    return values


def _matched(values: Any) -> Any:
    match values:
        case [first, *rest]:
            return [first, *rest]
        case _:
            return []


def outcome(operation: Any, values: list[Any]) -> Any:
    try:
        return operation(values)
    except (IndexError, TypeError) as error:
        return type(error)


@given(program=st.lists(st.sampled_from([*READS, *CHANGES, "spoil"]), max_size=8))
def test_it_does_what_a_list_of_copies_does(program):
    original = dicts()
    shared, copied = SharedList(original, copy_json), copy_json(original)
    for name in program:
        if name == "spoil":
            spoil(shared)
            spoil(copied)
            continue
        operation = READS.get(name) or CHANGES[name]
        got, expected = outcome(operation, shared), outcome(operation, copied)
        assert got == expected, name
        assert shared == copied, name
        if isinstance(got, list | dict | tuple):
            spoil(got)
            spoil(expected)
            assert shared == copied, name
    assert original == dicts()


@pytest.mark.parametrize("name", sorted(READS))
def test_what_a_read_returns_can_be_changed_without_harm(name):
    original = dicts()
    got = READS[name](SharedList(original, copy_json))
    spoil(got)
    assert original == dicts()


def test_members_are_copied_once_and_keep_their_identity():
    copied = []

    def count(member: dict[str, Any]) -> dict[str, Any]:
        copied.append(member)
        return dict(member)

    values = SharedList(dicts(), count)
    assert len(values) == 4
    assert values.is_shared
    assert not copied
    assert values[0] is values[0] is next(iter(values))
    assert len(copied) == 4
    assert not values.is_shared


def test_what_is_appended_stays_the_same_object():
    values = SharedList(dicts(), copy_json)
    mine = {"at": 9}
    values.append(mine)
    assert values[-1] is mine


def test_another_list_of_the_same_members_is_independent():
    original = dicts()
    first = SharedList(original, copy_json)
    second = first.share()
    spoil(first)
    assert second == original == dicts()
    third = first.share()
    third.clear()
    assert len(first) == 5


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def message() -> Message:
    return Message(
        role="assistant",
        content=[TextBlock(text="a", mark={"x": [1]}), ToolCallBlock(id="c", name="n", input={"path": {"deep": [1]}})],
        metadata={"tokens": {"input": 1}},
        tool_calls=[{"id": "c", "arguments": {"path": {"deep": [1]}}}],
    )


def test_a_detached_message_shares_nothing_that_can_be_changed():
    original = message()
    copied: Any = detached(original)
    assert copied == original
    copied.content[0].extra["mark"]["x"].append(2)
    copied.content[0].text = "b"
    copied.content[1].input["path"]["deep"].append(2)
    copied.content.append(TextBlock(text="c"))
    copied.metadata["tokens"]["input"] = 2
    copied.extra["tool_calls"][0]["arguments"]["path"]["deep"].append(2)
    copied.role = "user"
    assert original == message()


def test_a_request_keeps_sharing_until_its_messages_are_read():
    shared = SharedList([message()], detached)
    request = ChatRequest(messages=shared)
    assert shared_members(request.messages)[0] is shared_members(shared)[0]  # type: ignore[index]
    other = ChatRequest(messages=shared)
    request.messages[0].role = "user"
    other.messages.append(Message(role="user", content="x"))
    assert [m.role for m in request.messages] == ["user"]
    assert [m.role for m in other.messages] == ["assistant", "user"]
    assert list(shared) == [message()]


def test_a_shallow_copy_of_a_request_has_a_list_of_its_own_and_the_same_messages():
    request = ChatRequest(messages=SharedList([message()], detached))
    other = copy.copy(request)
    other.messages.append(Message(role="user", content="x"))
    assert [m.role for m in request.messages] == ["assistant"]
    assert other.messages[0] is request.messages[0]


def test_a_request_that_shares_is_written_without_a_copy_and_as_any_other():
    shared = SharedList([message()], detached)
    request = ChatRequest(messages=shared)
    plain = ChatRequest(messages=[message()])
    assert to_json(request) == to_json(plain)
    assert to_dict(request) == to_dict(plain)
    assert request == plain
    assert isinstance(request.messages, SharedList)
    assert request.messages.is_shared
    assert from_json(ChatRequest, to_json(request)) == plain
    assert type(pickle.loads(pickle.dumps(request)).messages) is list


def test_members_of_another_type_are_coerced():
    request = ChatRequest(messages=SharedList([{"role": "user", "content": "x"}], copy_json))  # type: ignore[arg-type]
    assert request.messages == [Message(role="user", content="x")]
    assert type(request.messages) is list
