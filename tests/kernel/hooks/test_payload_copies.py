"""What a handler may do with its payload: everything it may do with a deep copy, and it changes nothing but that copy.

The handlers run programs of operations, among them readers written in C, which see the storage of a dict or list and run no
method of a subclass. Every step gives what it gives on a real deep copy, and no one else sees a difference.
"""

from __future__ import annotations

import copy
import heapq
import json
import marshal
import operator
import pickle
from collections.abc import Callable
from typing import Any

import anyio.lowlevel
import msgspec
import orjson
import pydantic
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel import HookRegistry
from amplifier.models import HookResult

pytestmark = pytest.mark.virtual_time

Data = dict[str, Any]

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.just(0.5) | st.text("xyzä", max_size=3)
json_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)
payloads = st.dictionaries(st.sampled_from("abc"), json_values, max_size=3)


def mark(value: Any) -> Any:
    """Change every container below a value that a reader made of the payload."""
    if isinstance(value, dict):
        for child in list(value.values()):
            mark(child)
        value["marked"] = True
    elif isinstance(value, list):
        for child in list(value):
            mark(child)
        value.append("marked")
    return value


def matched(value: Any) -> Any:
    match value:
        case {"a": found, **others}:
            return [found, others]
        case [first, *rest]:
            return [first, rest]
    return None


def as_keywords(**given: Any) -> Any:
    return mark(given)


class Model(pydantic.BaseModel):
    held: Any


class Struct(msgspec.Struct):
    held: dict[str, Any] | list[Any]


READERS: dict[str, Callable[[Any], Any]] = {
    "json": json.dumps,
    "indented json": lambda value: json.dumps(value, indent=1, sort_keys=True),
    "orjson": orjson.dumps,
    "msgspec json": msgspec.json.encode,
    "msgpack": msgspec.msgpack.encode,
    "yaml": yaml.safe_dump,
    "marshal": lambda value: marshal.loads(marshal.dumps(value)),
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "deep copy": lambda value: mark(copy.deepcopy(value)),
    "repr": repr,
    "equal": lambda value: value == copy.deepcopy(value),
    "match": matched,
    "length": len,
    "bool": bool,
    "exact type": lambda value: type(value).__name__,
    "builtins of msgspec": lambda value: mark(msgspec.to_builtins(value)),
    # These keep the children of what they read.
    "pydantic": lambda value: mark(Model(held=value).held),
    "pydantic, containers": lambda value: mark(
        pydantic.TypeAdapter(dict[str, Any] | list[Any]).validate_python(value, strict=True)
    ),
    "pydantic, dumped": lambda value: mark(Model(held=value).model_dump()),
    "msgspec": lambda value: mark(msgspec.convert({"held": value}, Struct).held),
    "shallow copy": lambda value: mark(copy.copy(value)),
    "copy method": lambda value: mark(value.copy()),
}
ON_DICTS: dict[str, Callable[[Data, Any], Any]] = {
    "set": lambda value, other: value.__setitem__("b", other),
    "delete": lambda value, other: value.__delitem__("a"),
    "get": lambda value, other: mark(value.get("a")),
    "pop": lambda value, other: mark(value.pop("a", other)),
    "pop item": lambda value, other: value.popitem(),
    "set default": lambda value, other: mark(value.setdefault("c", other)),
    "update": lambda value, other: value.update(n=other),
    "or": lambda value, other: mark(value | {"z": other}),
    "or, right": lambda value, other: mark({"z": other} | value),
    "in-place or": lambda value, other: value.__ior__({"z": other}),
    "clear": lambda value, other: value.clear(),
    "dict": lambda value, other: mark(dict(value)),
    "unpack": lambda value, other: mark({**value, "z": 1}),
    "keys": lambda value, other: [*value.keys(), *reversed(value)],
    "values": lambda value, other: [mark(child) for child in value.values()],
    "items": lambda value, other: [mark(child) for _, child in list(value.items())],
    "values by the base class": lambda value, other: [mark(child) for child in dict.values(value)],
    "set by the base class": lambda value, other: dict.__setitem__(value, "b", other),
    "contains": lambda value, other: "a" in value,
    "keyword arguments": lambda value, other: as_keywords(**value),
    "comprehension": lambda value, other: {key: mark(child) for key, child in value.items()},
}
ON_LISTS: dict[str, Callable[[list[Any], Any], Any]] = {
    "append": lambda value, other: value.append(other),
    "extend": lambda value, other: value.extend([other, 1]),
    "insert": lambda value, other: value.insert(0, other),
    "pop": lambda value, other: mark(value.pop()),
    "first": lambda value, other: mark(value[0]),
    "set": lambda value, other: value.__setitem__(-1, other),
    "remove": lambda value, other: value.remove(other),
    "delete": lambda value, other: value.__delitem__(slice(0, 2)),
    "slice": lambda value, other: mark(value[::-1]),
    "set slice": lambda value, other: value.__setitem__(slice(1, 2), [other, other]),
    "add": lambda value, other: mark(operator.add(value, [other])),
    "add, right": lambda value, other: mark(operator.add([], value)),
    "in-place add": lambda value, other: value.__iadd__([other]),
    "repeat": lambda value, other: mark(value * 2),
    "in-place repeat": lambda value, other: value.__imul__(2),
    "sort": lambda value, other: value.sort(key=repr),
    "sorted": lambda value, other: [mark(child) for child in sorted(value, key=repr)],
    "reverse": lambda value, other: value.reverse(),
    "clear": lambda value, other: value.clear(),
    "index": lambda value, other: value.index(other),
    "count": lambda value, other: value.count(other),
    "contains": lambda value, other: other in value,
    "list": lambda value, other: mark(list(value)),
    "heap": lambda value, other: mark(heapq.heappushpop(value, other)),
    "append by the base class": list.append,
    "iterate": lambda value, other: [mark(child) for child in value],
}
operations = st.sampled_from([("read", name) for name in READERS]) | st.sampled_from(
    [("dict", name) for name in ON_DICTS] + [("list", name) for name in ON_LISTS]
)
steps = st.tuples(operations, st.integers(0, 20), json_values)
programs = st.lists(steps, max_size=6)


def containers_in(value: Any) -> list[Any]:
    """A value and the containers below it, in a fixed order."""
    if isinstance(value, dict):
        return [value, *(found for child in value.values() for found in containers_in(child))]
    if isinstance(value, list):
        return [value, *(found for child in value for found in containers_in(child))]
    return []


def run(program: list[Any], root: Data) -> list[Any]:
    """Do the steps of a program; what each of them gave."""
    results: list[Any] = []
    for (kind, name), which, other in program:
        candidates = [c for c in containers_in(root) if kind == "read" or type(c).__name__ == kind]
        if not candidates:
            continue
        target, mine = candidates[which % len(candidates)], copy.deepcopy(other)
        try:
            if kind == "read":
                results.append(copy.deepcopy(READERS[name](target)))
            else:
                results.append(
                    copy.deepcopy((ON_DICTS if kind == "dict" else ON_LISTS)[name](target, mine))
                )
        except Exception as error:  # whatever it is, a deep copy must give the same
            results.append(type(error))
    return results


def exact(value: Any) -> Any:
    """A value in which 1, 1.0 and True differ, and the order of keys counts."""
    return repr(value)


@pytest.mark.parametrize("padding", [0, 20])  # copies of a large payload are made in another way
@given(payloads, st.lists(programs, min_size=1, max_size=5))
async def test_payload_is_private_deep_copy(padding, payload, several):
    hooks = HookRegistry()
    payload["d"] = [{"n": [number]} for number in range(padding)]
    kept: list[tuple[Data, Data]] = []

    def handler_for(program: list[Any]) -> Any:
        async def handler(event: str, data: Data) -> HookResult:
            stamp = data["timestamp"]
            reference = {**copy.deepcopy(before), "timestamp": stamp}
            assert exact(data) == exact(reference)
            await anyio.lowlevel.checkpoint()
            assert exact(run(program, data)) == exact(run(program, reference))
            assert exact(data) == exact(reference)
            kept.append((data, reference))
            return HookResult()

        return handler

    for program in several:
        hooks.register("tool:pre", handler_for(program), on_failure="deny")
    before = copy.deepcopy(payload)
    result = await hooks.emit("tool:pre", payload)
    assert result.action == "continue", result.reason  # a gate that fails denies
    assert exact(payload) == exact(before)
    mark(payload)
    for data, reference in kept:
        assert exact(data) == exact(reference)


# ── what handlers and emitters keep ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fields", [None, ("n",)])
async def test_denial_is_isolated_from_its_handler(fields):
    hooks, kept = HookRegistry(), HookResult(action="deny", reason="no", data={"n": {"x": [1]}})
    hooks.register("e", lambda event, data: kept, fields=fields)
    result = await hooks.emit("e", {"n": {}})
    kept.reason = "changed"
    assert kept.data is not None
    kept.data["n"]["x"].append("changed")
    assert (result.action, result.reason) == ("deny", "no")
    assert result.data is not None
    assert result.data["n"] == {"x": [1]}


async def test_collected_data_is_isolated_from_its_handler():
    hooks = HookRegistry()
    kept: Data = {"x": [1]}
    circular: Data = {}
    circular["self"] = circular
    hooks.register("e", lambda event, data: HookResult(data={"n": kept}))
    hooks.register("e", lambda event, data: HookResult(data=circular))
    collected = await hooks.emit_and_collect("e", {})
    kept["x"].append("changed")
    assert collected == [{"n": {"x": [1]}}]


async def test_emitter_cannot_change_later_default_fields():
    hooks = HookRegistry()
    hooks.set_default_fields(env={"a": [1]})
    hooks.register("e", lambda event, data: None)
    for _ in range(2):
        result = await hooks.emit("e", {})
        assert result.data is not None
        assert result.data["env"] == {"a": [1]}
        result.data["env"]["a"].append("changed")
