"""When two JSON values are the same."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given

from amplifier._internal.json import copy_json, is_same_json
from tests.internal.test_json import json_values


class Foreign:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]


class Sly(dict[str, Any]):
    def refuse(self, *_: Any) -> Any:
        raise AssertionError("read")

    __iter__ = __eq__ = __len__ = keys = values = items = refuse


@given(json_values)
def test_copy_is_same(value):
    assert is_same_json(value, copy_json(value))


@given(json_values, json_values)
def test_inequality_is_symmetric(one, other):
    assert is_same_json(one, other) is is_same_json(other, one)
    if one != other:
        assert not is_same_json(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (1, "1"),
        ([1], [True]),
        ({"a": {"b": [1]}}, {"a": {"b": [True]}}),
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({}, []),
        (None, {}),
        (object(), object()),
    ],
)
def test_other_values_are_not(one, other):
    assert not is_same_json(one, other)
    assert not is_same_json(other, one)


def test_subclasses_are_plain_without_foreign_code():
    assert is_same_json(OrderedDict(a=[1]), {"a": [1]})
    assert is_same_json(Sly(a=1), {"a": 1})
    leaf = Foreign()
    assert is_same_json([leaf], [leaf])
    assert not is_same_json([leaf], [Foreign()])
    assert not is_same_json([leaf], [1])


def test_comparison_time_follows_size():
    """Depth, circles and many routes cost nothing more."""
    deep: list[Any] = []
    routes: Any = "x"
    for _ in range(20_000):
        deep = [deep]
    for _ in range(200):
        routes = [routes, routes]
    assert not is_same_json(deep, [deep])
    assert is_same_json(routes, copy_json(routes))
    ring: list[Any] = []
    ring.append(ring)
    other: list[Any] = []
    other.append(other)
    assert is_same_json(ring, other)
