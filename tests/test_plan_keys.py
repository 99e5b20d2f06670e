"""Sections and keys of a plan that the kernel does not know: misspelt ones are problems, others warnings."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.errors import PlanError
from amplifier.plan import check_plan, merge_plans, parse_plan

MINIMAL: dict[str, Any] = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}}


def plan(**sections: Any) -> dict[str, Any]:
    return {**MINIMAL, **sections}


def session(**keys: Any) -> dict[str, Any]:
    return {"session": {**MINIMAL["session"], **keys}}


def problems_of(config: Any) -> list[tuple[str, str]]:
    with pytest.raises(PlanError) as caught:
        parse_plan(config)
    assert caught.value.problems == check_plan(config)[0]
    return caught.value.problems


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
        (session(orchestrater="x"), "$.session.orchestrater", "key", "orchestrater", "orchestrator"),
        (session(contextSource="x"), "$.session.contextSource", "key", "contextSource", "context_source"),
        (session(context={"module": "c", "sorce": "x"}), "$.session.context.sorce", "key", "sorce", "source"),
        (plan(tools=[{"module": "a", "confg": {}}]), "$.tools[0].confg", "key", "confg", "config"),
        (
            plan(hooks=["a", {"module": "b", "on_failur": "deny"}]),
            "$.hooks[1].on_failur",
            "key",
            "on_failur",
            "on_failure",
        ),
        (plan(hooks=[{"module": "b", "on_fail": "deny"}]), "$.hooks[0].on_fail", "key", "on_fail", "on_failure"),
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
def test_a_misspelt_section_or_key_is_a_problem(config: Any, path: str, kind: str, found: str, meant: str) -> None:
    assert problems_of(config) == [(path, misspelling(kind, found, meant))]


def test_a_misspelt_section_is_a_problem_beside_the_one_it_was_meant_for() -> None:
    """An overlay with a slip in it, laid over a plan that has the section, must not lose its content."""
    merged = merge_plans(plan(hooks=["hooks-a"]), {"hoks": [{"module": "hooks-b", "on_failure": "deny"}]})
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
    assert len(warnings_of(session(**dict.fromkeys(FOREIGN_SESSION_KEYS)))) == len(FOREIGN_SESSION_KEYS)
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
        (plan(tools=[{"module": "a", "on_failure": "deny"}]), "$.tools[0].on_failure: unknown key, ignored"),
        (plan(hooks=[{"module": "a", "instance_id": "x"}]), "$.hooks[0].instance_id: unknown key, ignored"),
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
def test_what_is_odd_is_a_warning_and_not_an_error(config: Any, expected: str) -> None:
    assert warnings_of(config) == [expected]
