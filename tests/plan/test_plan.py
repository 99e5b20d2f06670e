"""The mount plan: reading, checking, merging, expanding."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.errors import PlanError
from amplifier.plan import (
    Deadlines,
    ModuleSpec,
    MountPlan,
    check_plan,
    expand_variables,
    merge_plans,
    parse_plan,
    plan_schema,
    validate_session_id,
)
from tests.internal.test_json import circular, nested

MINIMAL: dict[str, Any] = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}}


def plan(**sections: Any) -> dict[str, Any]:
    return {**copy.deepcopy(MINIMAL), **sections}


def session(**keys: Any) -> dict[str, Any]:
    return {"session": {**MINIMAL["session"], **keys}}


def problems_of(config: Any) -> list[tuple[str, str]]:
    """The problems, which parse_plan and check_plan must agree on."""
    with pytest.raises(PlanError) as caught:
        parse_plan(config)
    found, _ = check_plan(config)
    assert caught.value.problems == found
    return found


def keyed(inner: Any) -> dict[str, Any]:
    return {"k": inner}


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def test_minimal_plan_gets_defaults() -> None:
    assert parse_plan(MINIMAL) == MountPlan(
        orchestrator=ModuleSpec(module="loop-basic", path="$.session.orchestrator"),
        context=ModuleSpec(module="context-simple", path="$.session.context"),
        providers=[],
        tools=[],
        hooks=[],
        agents=None,
        strict=False,
        deadlines=Deadlines(),
        injection_budget_per_turn=None,
        injection_size_limit=None,
        metadata=None,
        raw=False,
        warnings=[],
    )


def test_default_deadlines_match_design() -> None:
    assert attrs.asdict(Deadlines()) == {
        "mount": 120.0,
        "ready": 60.0,
        "hook": 300.0,
        "contribution": 10.0,
        "collection": 30.0,
        "cleanup": 10.0,
        "teardown": 30.0,
        "turn": None,
    }


def test_every_field_is_read() -> None:
    configs = [{"n": n} for n in range(5)]
    read = parse_plan(
        {
            "session": {
                "orchestrator": {
                    "module": "loop-x",
                    "source": {"type": "git"},
                    "config": configs[0],
                },
                "context": "context-x",
                "context_source": "somewhere",
                "strict": True,
                "raw": True,
                "metadata": {"user": 1},
                "injection_budget_per_turn": 0,
                "injection_size_limit": 100,
                "deadlines": {"hook": 5, "turn": 60.5, "mount": None},
            },
            "context": {"config": configs[1]},
            "providers": [
                {"module": "provider-a", "instance_id": "a2", "config": configs[2]},
                "provider-a",
            ],
            "tools": ({"module": "tool-a", "source": "x", "config": configs[3]},),
            "hooks": [
                {"module": "hooks-a", "on_failure": "deny", "config": configs[4]},
                {"module": "hooks-b"},
            ],
            "agents": {"free": object},
        }
    )
    assert read == MountPlan(
        orchestrator=ModuleSpec(
            module="loop-x", source={"type": "git"}, config={"n": 0}, path="$.session.orchestrator"
        ),
        context=ModuleSpec(
            module="context-x", source="somewhere", config={"n": 1}, path="$.session.context"
        ),
        providers=[
            ModuleSpec(
                module="provider-a", instance_id="a2", config={"n": 2}, path="$.providers[0]"
            ),
            ModuleSpec(module="provider-a", path="$.providers[1]"),
        ],
        tools=[ModuleSpec(module="tool-a", source="x", config={"n": 3}, path="$.tools[0]")],
        hooks=[
            ModuleSpec(module="hooks-a", on_failure="deny", config={"n": 4}, path="$.hooks[0]"),
            ModuleSpec(module="hooks-b", path="$.hooks[1]"),
        ],
        agents={"free": object},
        strict=True,
        deadlines=Deadlines(hook=5.0, turn=60.5, mount=None),
        injection_budget_per_turn=0,
        injection_size_limit=100,
        metadata={"user": 1},
        raw=True,
    )
    given = [read.orchestrator, read.context, read.providers[0], read.tools[0], read.hooks[0]]
    assert all(spec.config is config for spec, config in zip(given, configs, strict=True))


def test_reading_changes_nothing_and_null_means_absent() -> None:
    config = {
        "session": {
            **MINIMAL["session"],
            "strict": None,
            "deadlines": None,
            "metadata": None,
            "raw": None,
        },
        "orchestrator": None,
        "context": {"config": None},
        "tools": None,
        "providers": [
            {"module": "provider-a", "config": None, "source": None, "instance_id": None}
        ],
        "hooks": [{"module": "hooks-a", "on_failure": None}],
    }
    before = copy.deepcopy(config)
    read = parse_plan(config)
    assert config == before
    assert read.tools == []
    assert read.providers == [ModuleSpec(module="provider-a", path="$.providers[0]")]
    assert read.hooks == [ModuleSpec(module="hooks-a", path="$.hooks[0]")]
    assert (read.strict, read.raw, read.deadlines, read.warnings) == (False, False, Deadlines(), [])


def test_inherited_deadlines_fill_gaps() -> None:
    base = Deadlines(hook=1.0, mount=None, turn=9.0)
    assert parse_plan(MINIMAL, base_deadlines=base).deadlines is base
    read = parse_plan(session(deadlines={"turn": None, "mount": 2}), base_deadlines=base)
    assert read.deadlines == Deadlines(hook=1.0, mount=2.0, turn=None)
    assert base == Deadlines(hook=1.0, mount=None, turn=9.0)


def test_other_mappings_are_read_too() -> None:
    proxy = MappingProxyType
    read = parse_plan(
        proxy({"session": OrderedDict(MINIMAL["session"]), "tools": [proxy({"module": "tool-a"})]})
    )
    assert read.tools[0].module == "tool-a"


LIVE: dict[str, Callable[[], Any]] = {
    "NaN": lambda: {"x": math.nan},
    "infinity": lambda: {"x": [math.inf]},
    "lone surrogate": lambda: {"\ud800": "\udfff"},
    "circle": circular,
    "deep": lambda: nested(10_000, keyed),
    "function": lambda: {"callback": print},
    "keys that are no strings": lambda: {(1, 2): {3}, None: b"x"},
    "huge number": lambda: {"x": 10**5000},
}


@pytest.mark.parametrize("make", LIVE.values(), ids=LIVE)
def test_module_configuration_is_never_inspected(make: Callable[[], Any]) -> None:
    value = make()
    read = parse_plan(
        {
            "session": {
                "orchestrator": {"module": "loop-a", "config": value},
                "context": "c",
                "metadata": value,
            },
            "context": {"config": value},
            "tools": [{"module": "tool-a", "config": value, "source": value}],
            "agents": value,
        }
    )
    specs = (read.orchestrator, read.context, read.tools[0])
    assert all(spec.config is value for spec in specs)
    assert read.agents is read.metadata is read.tools[0].source is value
    assert read.warnings == []


# ── problems ─────────────────────────────────────────────────────────────────────────────────────

ID_RULE = "expected a module id: a lower-case letter, then lower-case letters, digits, '-' or '_', at most 64 in all"
SECONDS = "expected seconds, more than 0, or null for no limit"
LIMIT = "expected a whole number, 0 or more, or null for no limit"
NO_LOOP = "session.orchestrator is required: the id of a module, such as 'loop-basic', or a mapping with one"
NO_CONTEXT = "session.context is required: the id of a module, such as 'context-simple', or a mapping with one"
A_PLAN = "expected a plan: a mapping with the sections session, providers, tools, hooks"
A_MODULE = "expected a module: its id, or a mapping with 'module'"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, [("$", f"{A_PLAN}, got None")]),
        ([], [("$", f"{A_PLAN}, got a list")]),
        ("plan.yaml", [("$", f"{A_PLAN}, got 'plan.yaml'")]),
        ({}, [("$", "the plan is empty; session.orchestrator and session.context are required")]),
        ({"tools": []}, [("$.session.orchestrator", NO_LOOP), ("$.session.context", NO_CONTEXT)]),
        ({"session": {"context": "c"}}, [("$.session.orchestrator", NO_LOOP)]),
        ({"session": {"orchestrator": "o", "context": None}}, [("$.session.context", NO_CONTEXT)]),
        (
            {"session": 5},
            [
                ("$.session", "expected a mapping with orchestrator and context, got 5"),
                ("$.session.orchestrator", NO_LOOP),
                ("$.session.context", NO_CONTEXT),
            ],
        ),
        (session(orchestrator=""), [("$.session.orchestrator", f"{ID_RULE}, got ''")]),
        (session(orchestrator="../x"), [("$.session.orchestrator", f"{ID_RULE}, got '../x'")]),
        (session(context=5), [("$.session.context", f"{A_MODULE}, got 5")]),
        (
            session(context={}),
            [("$.session.context.module", "'module' is required: the id of the module to mount")],
        ),
        (
            plan(orchestrator=[]),
            [("$.orchestrator", "expected a mapping with 'config', got a list")],
        ),
        (plan(context={"config": 5}), [("$.context.config", "expected a mapping, got 5")]),
        (session(strict="yes"), [("$.session.strict", "expected true or false, got 'yes'")]),
        (session(raw=1), [("$.session.raw", "expected true or false, got 1")]),
        (
            session(injection_size_limit=-1),
            [("$.session.injection_size_limit", f"{LIMIT}, got -1")],
        ),
        (
            session(injection_size_limit=True),
            [("$.session.injection_size_limit", f"{LIMIT}, got True")],
        ),
        (
            session(injection_size_limit="10"),
            [("$.session.injection_size_limit", f"{LIMIT}, got '10'")],
        ),
        (
            session(injection_size_limit=[10]),
            [("$.session.injection_size_limit", f"{LIMIT}, got a list")],
        ),
        (
            session(injection_budget_per_turn=math.nan),
            [("$.session.injection_budget_per_turn", f"{LIMIT}, got nan")],
        ),
        (
            session(injection_budget_per_turn=1.5),
            [("$.session.injection_budget_per_turn", f"{LIMIT}, got 1.5")],
        ),
        (plan(tools="tool-a"), [("$.tools", "expected a list of modules, got 'tool-a'")]),
        (
            plan(tools={"module": "tool-a"}),
            [("$.tools", "expected a list of modules, got a dict; wrap the one module in a list")],
        ),
        (plan(tools=[5]), [("$.tools[0]", f"{A_MODULE}, got 5")]),
        (plan(tools=["tool-a", None]), [("$.tools[1]", f"{A_MODULE}, got None")]),
        (plan(tools=[{"module": "Tool"}]), [("$.tools[0].module", f"{ID_RULE}, got 'Tool'")]),
        (plan(tools=[{"module": ["a"]}]), [("$.tools[0].module", f"{ID_RULE}, got a list")]),
        (
            plan(tools=[{"module": None}]),
            [("$.tools[0].module", "'module' is required: the id of the module to mount")],
        ),
        (
            plan(tools=[{"module": "a", "config": "x"}]),
            [("$.tools[0].config", "expected a mapping, got 'x'")],
        ),
        (
            plan(providers=[{"module": "a", "instance_id": " "}]),
            [("$.providers[0].instance_id", "expected a name, got ' '")],
        ),
        (
            plan(hooks=[{"module": "a", "on_failure": "denny"}]),
            [
                (
                    "$.hooks[0].on_failure",
                    "expected 'continue' or 'deny', got 'denny'; did you mean 'deny'?",
                )
            ],
        ),
        (
            plan(hooks=[{"module": "a", "on_failure": ["deny"]}]),
            [("$.hooks[0].on_failure", "expected 'continue' or 'deny', got a list")],
        ),
    ],
)
def test_problem_is_named_with_path(config: Any, expected: list[tuple[str, str]]) -> None:
    assert problems_of(config) == expected


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, math.nan, math.inf, -math.inf, True, False, "5", [5], 10**400, 1e11]
)
def test_deadline_is_positive_finite_or_null(value: Any) -> None:
    [(path, problem)] = problems_of(session(deadlines={"hook": value}))
    assert path == "$.session.deadlines.hook"
    assert problem.startswith(SECONDS)


def test_unknown_deadline_gets_suggestion() -> None:
    known = "mount, ready, hook, contribution, collection, cleanup, teardown, turn"
    assert problems_of(session(deadlines={"clean_up": 1, "zzz": 2, 3: 4})) == [
        ("$.session.deadlines.clean_up", "unknown key; did you mean 'cleanup'?"),
        ("$.session.deadlines.zzz", f"unknown key; known are {known}"),
        ("$.session.deadlines[3]", f"unknown key; known are {known}"),
    ]
    assert problems_of(session(deadlines=[1])) == [
        ("$.session.deadlines", f"expected a mapping of seconds by name ({known}), got a list")
    ]


def test_repeated_provider_needs_names() -> None:
    entries = [{"module": "provider-a"}, {"module": "provider-a"}, {"module": "provider-b"}]
    [(path, problem)] = problems_of(plan(providers=entries))
    assert path == "$.providers[1].instance_id"
    assert "'provider-a' is mounted already at $.providers[0]" in problem
    assert "multi-instance providers require explicit 'instance_id'" in problem

    entries = [
        {"module": "provider-a", "instance_id": "x"},
        {"module": "provider-b", "instance_id": "x"},
    ]
    assert problems_of(plan(providers=entries)) == [
        (
            "$.providers[1].instance_id",
            "'x' is the instance_id of $.providers[0] too; choose another",
        )
    ]

    entries = [
        {"module": "provider-a"},
        *({"module": "provider-a", "instance_id": n} for n in "xy"),
    ]
    assert [spec.instance_id for spec in parse_plan(plan(providers=entries)).providers] == [
        None,
        "x",
        "y",
    ]


def test_problems_are_reported_in_reading_order() -> None:
    config = {
        "session": {"orchestrator": 1, "strict": 2, "deadlines": {"hook": 0}},
        "providers": [{"module": "a"}, {"module": "a"}],
        "tools": [{}, {"module": "x", "config": 1}],
        "hooks": 3,
    }
    found = problems_of(config)
    assert [path for path, _ in found] == [
        "$.session.orchestrator",
        "$.session.context",
        "$.session.strict",
        "$.session.deadlines.hook",
        "$.providers[1].instance_id",
        "$.tools[0].module",
        "$.tools[1].config",
        "$.hooks",
    ]
    with pytest.raises(ValueError, match="invalid mount plan: 8 problems") as caught:
        parse_plan(config)
    assert all(f"{path}: {problem}" in str(caught.value) for path, problem in found)


def test_long_values_are_shortened_and_visible() -> None:
    [(_, problem)] = problems_of(session(orchestrator="x\x1b[31m" + "y" * 1000))
    assert "\x1b" not in problem
    assert len(problem) < 250


# ── sections and keys that the kernel does not know: misspelt ones are problems, others warnings ──────


def warnings_of(config: Any) -> list[str]:
    found, warnings = check_plan(config)
    assert found == []
    assert parse_plan(config).warnings == warnings
    return warnings


def misspelling(kind: str, found: str, meant: str) -> str:
    return f"unknown {kind} {found!r}; did you mean {meant!r}? Rename or remove it: it would be ignored"


@pytest.mark.parametrize(
    ("config", "path", "kind", "found", "meant"),
    [
        (plan(hoks=[]), "$.hoks", "section", "hoks", "hooks"),
        (plan(tols=[]), "$.tols", "section", "tols", "tools"),
        (plan(Providers=[]), "$.Providers", "section", "Providers", "providers"),
        (plan(agent={}), "$.agent", "section", "agent", "agents"),
        ({**MINIMAL, "sesion": {}}, "$.sesion", "section", "sesion", "session"),
        (session(strikt=True), "$.session.strikt", "key", "strikt", "strict"),
        (session(deadline={}), "$.session.deadline", "key", "deadline", "deadlines"),
        (
            session(orchestrater="x"),
            "$.session.orchestrater",
            "key",
            "orchestrater",
            "orchestrator",
        ),
        (
            session(contextSource="x"),
            "$.session.contextSource",
            "key",
            "contextSource",
            "context_source",
        ),
        (
            session(context={"module": "c", "sorce": "x"}),
            "$.session.context.sorce",
            "key",
            "sorce",
            "source",
        ),
        (plan(tools=[{"module": "a", "confg": {}}]), "$.tools[0].confg", "key", "confg", "config"),
        (
            plan(hooks=["a", {"module": "b", "on_failur": "deny"}]),
            "$.hooks[1].on_failur",
            "key",
            "on_failur",
            "on_failure",
        ),
        (
            plan(hooks=[{"module": "b", "on_fail": "deny"}]),
            "$.hooks[0].on_fail",
            "key",
            "on_fail",
            "on_failure",
        ),
        (
            plan(providers=[{"module": "b", "instance": "x"}]),
            "$.providers[0].instance",
            "key",
            "instance",
            "instance_id",
        ),
        (plan(context={"configs": {}}), "$.context.configs", "key", "configs", "config"),
    ],
)
def test_misspelt_section_or_key_is_problem(
    config: Any, path: str, kind: str, found: str, meant: str
) -> None:
    assert problems_of(config) == [(path, misspelling(kind, found, meant))]


def test_misspelt_section_beside_real_one() -> None:
    """An overlay with a slip in it, laid over a plan that has the section, must not lose its content."""
    merged = merge_plans(
        plan(hooks=["hooks-a"]), {"hoks": [{"module": "hooks-b", "on_failure": "deny"}]}
    )
    assert problems_of(merged) == [("$.hoks", misspelling("section", "hoks", "hooks"))]


FOREIGN_SECTIONS = [
    "spawn",
    "profile",
    "profiles",
    "bundle",
    "meta",
    "name",
    "description",
    "version",
    "system",
    "exclude",
    "includes",
    "instruction",
    "settings",
    "skills",
    "routing",
    "notifications",
    "ui",
    "schema",
    "session_id",
    "logging",
    "modes",
    "events",
    "overrides",
]
FOREIGN_SESSION_KEYS = [
    "settings",
    "debug",
    "raw_debug",
    "max_tokens",
    "compact_threshold",
    "auto_compact",
    "name",
    "id",
    "context_window",
    "spawn",
]
FOREIGN_ENTRY_KEYS = [
    "id",
    "name",
    "description",
    "mode",
    "priority",
    "enabled",
    "version",
    "resource",
    "events",
    "timeout",
]


def test_keys_of_published_applications_stay_warnings() -> None:
    """The published kernel ignores what it does not know, and applications carry their own data in plans."""
    assert len(warnings_of(plan(**dict.fromkeys(FOREIGN_SECTIONS)))) == len(FOREIGN_SECTIONS)
    assert len(warnings_of(session(**dict.fromkeys(FOREIGN_SESSION_KEYS)))) == len(
        FOREIGN_SESSION_KEYS
    )
    for section in ("providers", "tools", "hooks"):
        entry = {"module": "a", **dict.fromkeys(FOREIGN_ENTRY_KEYS)}
        assert len(warnings_of(plan(**{section: [entry]}))) == len(FOREIGN_ENTRY_KEYS)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (plan(zzzz=1), "$.zzzz: unknown section, ignored"),
        (plan(provdrs=1), "$.provdrs: unknown section, ignored; did you mean 'providers'?"),
        (plan(profile=1), "$.profile: unknown section, ignored"),
        ({"session": MINIMAL["session"], 5: 1}, "$[5]: unknown section, ignored"),
        (
            plan(tools=[{"module": "a", "on_failure": "deny"}]),
            "$.tools[0].on_failure: unknown key, ignored",
        ),
        (
            plan(hooks=[{"module": "a", "instance_id": "x"}]),
            "$.hooks[0].instance_id: unknown key, ignored",
        ),
        (
            {**session(orchestrator={"module": "o"}), "orchestrator": {"config": {}}},
            "$.orchestrator: ignored, because session.orchestrator is a mapping; put 'config' there",
        ),
        (
            session(context={"module": "o"}, context_source="x"),
            "$.session.context_source: ignored, because session.context is a mapping; put 'source' there",
        ),
    ],
)
def test_oddity_is_warning(config: Any, expected: str) -> None:
    assert warnings_of(config) == [expected]


# ── hostile input ────────────────────────────────────────────────────────────────────────────────

KNOWN = (
    "session orchestrator context providers tools hooks agents module source config instance_id on_failure strict"
    " deadlines hook turn raw metadata injection_size_limit orchestrator_source deny loop-basic provider-a"
)
known_words = st.sampled_from(KNOWN.split(" "))
plan_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | known_words,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            known_words | st.text(max_size=3) | st.integers() | st.none(), inner, max_size=6
        )
        | st.lists(inner, max_size=2).map(tuple)
        | st.builds(object)
        | st.binary(max_size=2)
    ),
    max_leaves=40,
)


@given(plan_like | st.dictionaries(known_words, plan_like, max_size=6))
def test_any_input_is_read_or_refused(config: Any) -> None:
    found, warnings = check_plan(config)
    assert all(path.startswith("$") and text for path, text in found)
    assert all(warning.startswith("$") for warning in warnings)
    try:
        read = parse_plan(config)
    except PlanError as error:
        refused = error.problems
    else:
        refused = []
        assert isinstance(read, MountPlan)
    assert refused == found


class _Hostile:
    """Hashes like a key of the plan and raises when it is compared or shown."""

    def __init__(self, key: str = "session") -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("compared")

    def __repr__(self) -> str:
        raise ZeroDivisionError("shown")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return dict


class _HostileDict(dict):
    def _raise(self, *args: object) -> Any:
        raise ZeroDivisionError("read")

    get = keys = items = values = __iter__ = __getitem__ = __contains__ = __len__ = _raise


HOSTILE: list[Any] = [
    _Hostile(),
    {_Hostile(): 1},
    _HostileDict(MINIMAL),
    {"session": _HostileDict(MINIMAL["session"])},
    {"session": {_Hostile("orchestrator"): 1}},
    session(orchestrator=_Hostile()),
    session(strict=_Hostile()),
    session(deadlines={"hook": _Hostile()}),
    session(deadlines=_Hostile()),
    plan(tools=_Hostile()),
    plan(tools=[_Hostile(), _HostileDict()]),
    plan(tools=[{"module": _Hostile()}]),
    plan(tools=[{"module": "a", "config": _Hostile()}]),
    plan(hooks=[{"module": "a", "on_failure": _Hostile()}]),
    plan(providers=[{"module": "a", "instance_id": _Hostile()}]),
    circular(),
    nested(10_000, keyed),
    {"session": circular()},
    {"session": nested(10_000, keyed)},
]


@pytest.mark.parametrize("config", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_objects_are_refused(config: Any) -> None:
    found = problems_of(config)
    assert found
    assert all(path.startswith("$") for path, _ in found)


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "a\\b",
        "a b",
        "a\n",
        "é",
        "0" * 201,
        "a\x00b",
        None,
        5,
        b"a",
        "%2e",
        "~",
    ],
)
def test_invalid_session_ids_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="invalid session id: expected 1 to 200 of: letters"):
        validate_session_id(text)


# ── merging ──────────────────────────────────────────────────────────────────────────────────────

plans = st.recursive(
    st.dictionaries(
        st.sampled_from("abc"), st.integers(0, 3) | st.lists(st.integers()), max_size=3
    ),
    lambda inner: st.dictionaries(
        st.sampled_from("abc"), inner | st.lists(inner, max_size=2) | st.none(), max_size=3
    ),
    max_leaves=12,
)


def containers_of(value: Any) -> set[int]:
    found, pending = set(), [value]
    while pending:
        item = pending.pop()
        if isinstance(item, (dict, list)):
            found.add(id(item))
            pending += item.values() if isinstance(item, dict) else item
    return found


@given(plans, plans)
def test_merge_shares_nothing_and_keeps_arguments(
    base: dict[str, Any], overlay: dict[str, Any]
) -> None:
    before = copy.deepcopy((base, overlay))
    merged = merge_plans(base, overlay)
    assert (base, overlay) == before
    assert containers_of(merged).isdisjoint(containers_of(base) | containers_of(overlay))


@given(plans, plans)
def test_overlay_wins_over_base(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    merged = merge_plans(base, overlay)
    assert merged.keys() == base.keys() | overlay.keys()
    for key, value in merged.items():
        if key not in overlay:
            assert value == base[key]
        elif isinstance(overlay[key], dict) and isinstance(base.get(key), dict):
            assert value == merge_plans(base[key], overlay[key])
        else:
            assert value == overlay[key]


def test_unmergeable_value_is_refused_with_path() -> None:
    circle: dict[str, Any] = {"a": {"b": circular()}}
    plain: dict[str, Any] = {"a": {"b": 1}}
    for base, overlay in ((circle, plain), (plain, circle)):
        with pytest.raises(PlanError, match="cannot merge plans") as caught:
            merge_plans(base, overlay)
        assert caught.value.problems == [("$.a.b.a[1].back", "contains itself")]
    with pytest.raises(PlanError, match="nested deeper than 1000 levels"):
        merge_plans({}, {"a": nested(10_000, keyed)})
    with pytest.raises(PlanError, match="expected the overlay to be a mapping, got None"):
        merge_plans({}, None)  # type: ignore[arg-type]


def test_deep_plans_merge_without_recursion() -> None:
    merged = merge_plans(nested(900, keyed), nested(900, keyed))
    assert merge_plans(merged, {}) == merged


# ── variables ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "1"),
        ("x${A}y${B}z", "x1y2z"),
        ("${MISSING:-d e:f}", "d e:f"),
        ("${MISSING:-}", ""),
        ("${A:-d}", "1"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("$A $ {A} $", "$A $ {A} $"),
        ("${NESTED}", "${A}"),
        ("${P:-$5}", "$5"),
        ("", ""),
    ],
)
def test_variables_are_expanded(text: str, expected: str) -> None:
    env = {"A": "1", "B": "2", "EMPTY": "", "NESTED": "${A}"}
    assert expand_variables({"x": [{"y": text}], "t": (text,)}, env) == {
        "x": [{"y": expected}],
        "t": (expected,),
    }


def test_missing_and_malformed_references_are_listed() -> None:
    config = {
        "a": "${X}",
        "b": [{"c": "${Y} ${A} ${Z}"}],
        "d": "${1x}",
        "e": "${A:-${B}}",
        "f": "${",
    }
    with pytest.raises(PlanError, match="cannot expand the plan's variables: 7 problems") as caught:
        expand_variables(config, {"A": "1"})
    missing = "variable {0!r} is not set; set it or write ${{{0}:-default}}"
    rule = "write ${NAME} or ${NAME:-default}, or $${ for a plain ${"
    assert caught.value.problems == [
        ("$.a", missing.format("X")),
        ("$.b[0].c", missing.format("Y")),
        ("$.b[0].c", missing.format("Z")),
        ("$.d", rule),
        ("$.e", rule),
        ("$.e", missing.format("B")),
        ("$.f", rule),
    ]


def test_keys_and_live_objects_are_not_expanded() -> None:
    client = object()
    assert expand_variables({"${A}": client, "n": 5}, {"A": "1"}) == {"${A}": client, "n": 5}


@pytest.mark.parametrize("value", [circular(), nested(10_000, keyed)], ids=["circle", "deep"])
def test_unexpandable_value_is_refused(value: Any) -> None:
    with pytest.raises(PlanError, match="cannot expand the plan's variables"):
        expand_variables({"a": value}, {})
    with pytest.raises(PlanError, match="expected a mapping, got None"):
        expand_variables(None, {})  # type: ignore[arg-type]


# ── schema ───────────────────────────────────────────────────────────────────────────────────────


def test_schema_has_defaults() -> None:
    schema = plan_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    deadlines = schema["properties"]["session"]["properties"]["deadlines"]["properties"]
    assert {name: schema["default"] for name, schema in deadlines.items()} == attrs.asdict(
        Deadlines()
    )
