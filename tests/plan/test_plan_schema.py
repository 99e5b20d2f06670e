"""The shipped JSON Schema of mount plans and the reader of plans agree, as far as JSON Schema can express it."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from amplifier.plan import check_plan, plan_schema
from amplifier.plan._reading import SECTIONS, SESSION_KEYS, SPEC_KEYS
from docs._generate._plan_schema import schema_text

SHIPPED = files("amplifier.plan").joinpath("mount-plan.schema.json")
VALIDATOR = jsonschema_rs.validator_for(plan_schema())
MINIMAL: dict[str, Any] = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}}


def fits(plan: Any) -> bool:
    return bool(VALIDATOR.is_valid(plan))


def is_accepted(plan: Any) -> bool:
    return not check_plan(plan)[0]


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


def test_shipped_file_matches_code() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == schema_text(), "run: make docs"
    assert json.loads(SHIPPED.read_text(encoding="utf-8")) == plan_schema()


def test_schema_is_valid() -> None:
    jsonschema_rs.meta.validate(plan_schema())


def test_schema_has_exactly_reader_keys() -> None:
    properties = plan_schema()["properties"]
    assert set(properties) == SECTIONS
    assert set(properties["session"]["properties"]) == set(SESSION_KEYS)
    for section in ("providers", "tools", "hooks"):
        assert set(properties[section]["items"]["anyOf"][1]["properties"]) == set(
            SPEC_KEYS[section]
        )


def test_everything_named_is_described() -> None:
    def undescribed(schema: Any, path: str) -> list[str]:
        if not isinstance(schema, dict):
            return []
        named = schema.get("properties", {})
        found = [f"{path}.{name}" for name, inner in named.items() if "description" not in inner]
        inner = [
            *named.items(),
            ("items", schema.get("items")),
            *enumerate(schema.get("anyOf", ())),
        ]
        return found + [
            problem for name, part in inner for problem in undescribed(part, f"{path}.{name}")
        ]

    assert undescribed(plan_schema(), "$") == []


# ── agreement ────────────────────────────────────────────────────────────────────────────────────

leaves = (
    st.none() | st.booleans() | st.integers(-5, 10**11) | st.floats(-1, 1e11) | st.text(max_size=4)
)
anything = (
    leaves | st.lists(leaves, max_size=2) | st.dictionaries(st.text(max_size=3), leaves, max_size=2)
)
right_ids = st.sampled_from(["loop-basic", "tool-a", "a", "a" * 64])
wrong_ids = st.sampled_from(["a" * 65, "Tool", "", "-a", "a\n", "a.b"])


def mostly(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What belongs here, seldom something else."""
    return st.integers(0, 29).flatmap(lambda number: anything if number == 17 else strategy)


def mapping(**known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={name: mostly(values) for name, values in known.items()} | {"odd": leaves}
    )


def module(**extra: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    spec = mapping(config=mapping(), source=anything, **extra)
    ids = st.integers(0, 29).flatmap(lambda number: wrong_ids if number == 17 else right_ids)
    return mostly(ids | st.tuples(ids, spec).map(lambda pair: {**pair[1], "module": pair[0]}))


def modules(**extra: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return mostly(st.lists(module(**extra), max_size=3))


seconds = st.floats(0.001, 1e10) | st.integers(1, 10**10) | st.none()
settings = mapping(
    strict=st.booleans() | st.none(),
    raw=st.booleans(),
    deadlines=mapping(mount=seconds, hook=seconds, turn=seconds),
    injection_budget_per_turn=st.integers(0, 100) | st.none(),
    injection_size_limit=st.integers(0, 100),
    metadata=anything,
    orchestrator_source=anything,
)
sessions = st.tuples(settings, module(), module()).map(
    lambda parts: {**parts[0], "orchestrator": parts[1], "context": parts[2]}
)
plans = st.tuples(
    mostly(sessions),
    mapping(
        orchestrator=mapping(config=mapping()),
        context=mapping(config=mapping()),
        providers=modules(
            instance_id=st.sampled_from(["one", "two", " ", "", "\ufeff", "\x1c", None])
        ),
        tools=modules(),
        hooks=modules(on_failure=st.sampled_from(["continue", "deny", None, "Deny"])),
        agents=anything,
    ),
).map(lambda parts: {**parts[1], "session": parts[0]})

ONLY_THE_READER_KNOWS = (
    "is mounted already at",  # uniqueness within a list
    "is the instance_id of",
    "expected a whole number",  # 5.0 is an integer to JSON Schema
    "expected a name, got",  # blanks that are none to a schema
    "Rename or remove it",  # misspelt keys are unknown ones to a schema
)


@given(plans)
@example({**MINIMAL, "providers": [{"module": "a", "instance_id": "\ufeff"}]})
@example({"session": {"orchestrator": {"module": "a"}, "context": "b"}, "orchestrator": 5})
def test_accepted_plan_fits_schema(plan: Any) -> None:
    if is_accepted(plan):
        assert fits(plan), [error.message for error in VALIDATOR.iter_errors(plan)]


@given(plans)
def test_fitting_plan_has_inexpressible_problems_only(
    plan: Any,
) -> None:
    if fits(plan):
        problems, _ = check_plan(plan)
        assert [
            text
            for _, text in problems
            if not any(known in text for known in ONLY_THE_READER_KNOWS)
        ] == []


def test_drawn_plans_are_of_both_kinds() -> None:
    seen = {True: 0, False: 0}

    @example_settings(max_examples=60)
    @given(plans)
    def look(plan: Any) -> None:
        seen[is_accepted(plan)] += 1

    look()
    assert min(seen.values()) >= 5, seen


def changed(path: str, value: Any) -> dict[str, Any]:
    """The minimal plan with one value put somewhere."""
    plan = copy.deepcopy(MINIMAL)
    *folders, last = path.split(".")
    place = plan
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    return plan


@pytest.mark.parametrize(
    "plan",
    [
        MINIMAL,
        changed("$schema", "./mount-plan.schema.json"),
        changed("session.deadlines", {"turn": None, "hook": 0.5}),
        changed(
            "tools", ["tool-todo", {"module": "tool-bash", "config": None, "source": {"git": "x"}}]
        ),
        changed("providers", [{"module": "a"}, {"module": "a", "instance_id": "second"}]),
        changed("unknown", 1),
        changed("session.orchestrator", {"module": "loop-basic", "config": {"max_iterations": 3}}),
    ],
)
def test_valid_plan_passes_both(plan: Any) -> None:
    assert is_accepted(plan)
    assert fits(plan)


def test_schema_address_is_known_section() -> None:
    assert check_plan(changed("$schema", "./mount-plan.schema.json")) == ([], [])
