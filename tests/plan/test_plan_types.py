"""The TypedDicts of plans and the JSON Schema of plans have the same keys, the same required keys and the same types."""

from __future__ import annotations

import collections.abc
import types
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

import amplifier.modules.tools.todo as tool_todo
from amplifier import AmplifierSession, on
from amplifier.contracts import Coordinator
from amplifier.plan import ModuleDict, PlanDict, parse_plan, plan_schema
from amplifier.testing import MockContextManager, MockProvider, MockTool, ScriptedOrchestrator

ANYTHING = "anything"
NAMES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


def is_module(hint: Any) -> bool:
    return get_origin(hint) is collections.abc.Callable or getattr(hint, "_is_protocol", False)


def shape_of_type(hint: Any) -> Any:
    """A type as a set of alternatives; each is a name, or a mapping or a list of shapes."""
    if hint is Any:
        return ANYTHING
    origin = get_origin(hint)
    if origin is Required:
        return shape_of_type(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        # A module itself, which only a plan in Python has, is no part of the schema.
        members = [member for member in get_args(hint) if not is_module(member)]
        return frozenset().union(*map(shape_of_type, members))
    if origin is Literal:
        return frozenset(map(repr, get_args(hint)))
    if is_typeddict(hint):
        keys = ((key, shape_of_type(inner)) for key, inner in get_type_hints(hint).items())
        return frozenset({("mapping", frozenset(keys), frozenset(hint.__required_keys__))})
    if origin is list:
        return frozenset({("list", shape_of_type(get_args(hint)[0]))})
    return frozenset({NAMES[origin or hint]})


def shape_of_schema(schema: dict[str, Any], path: str = "$") -> Any:
    """The same of a JSON Schema, as far as plans use it."""
    if path in ("$.orchestrator", "$.context"):
        # Beside an id the section has to be this, which the schema states apart; beside a mapping it is ignored.
        [beside] = [
            part["then"]
            for part in plan_schema()["allOf"]
            if path[2:] in part["then"]["properties"]
        ]
        schema = beside["properties"][path[2:]]
    if "anyOf" in schema:
        return frozenset().union(*(shape_of_schema(part, f"{path}|") for part in schema["anyOf"]))
    if "enum" in schema:
        return frozenset("null" if value is None else repr(value) for value in schema["enum"])
    if "type" not in schema:
        return ANYTHING
    kinds = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
    if "properties" in schema:
        keys = (
            (key, shape_of_schema(inner, f"{path}.{key}"))
            for key, inner in schema["properties"].items()
        )
        mapping = ("mapping", frozenset(keys), frozenset(schema.get("required", ())))
        return frozenset({mapping, *kinds - {"object"}})
    if "items" in schema:
        return frozenset(
            {("list", shape_of_schema(schema["items"], f"{path}[]")), *kinds - {"array"}}
        )
    return frozenset(kinds)


def keys_of(shape: Any) -> dict[str, Any]:
    [(_, keys, _required)] = shape
    return dict(keys)


def test_typed_plan_matches_schema() -> None:
    typed, described = shape_of_type(PlanDict), shape_of_schema(plan_schema())
    assert set(keys_of(typed)) == set(keys_of(described))
    for key, shape in keys_of(described).items():
        assert keys_of(typed)[key] == shape, key
    assert typed == described


async def weather(city: str) -> str:
    """Tells the weather."""
    return city


@on("tool:pre")
async def listen(event: str, data: dict[str, Any]) -> None: ...


async def mount(coordinator: Coordinator, config: dict[str, Any]) -> None: ...


def test_typed_plan_takes_modules_themselves() -> None:
    plan: PlanDict = {
        "session": {
            "orchestrator": ScriptedOrchestrator([]),
            "context": {"module": MockContextManager()},
        },
        "providers": [MockProvider([]), {"module": MockProvider([]), "instance_id": "other"}],
        "tools": [
            "tool-todo",
            weather,
            MockTool("own"),
            mount,
            {"module": weather, "config": {}},
            tool_todo,
        ],
        "hooks": [listen, {"module": listen, "on_failure": "deny"}],
    }
    assert len(parse_plan(plan).tools) == 6


def test_typed_plan_makes_session() -> None:
    tool: ModuleDict = {"module": "tool-todo"}
    plan: PlanDict = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "tools": [tool],
    }
    assert AmplifierSession(plan).config is plan
