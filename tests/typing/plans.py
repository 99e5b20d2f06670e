"""Type-checked only, by mypy and pyright: plans as TypedDicts and as plain dicts."""

from __future__ import annotations

from typing import Any, assert_type

from amplifier import AmplifierSession
from amplifier.plan import HookDict, PlanDict, check_plan, merge_plans, parse_plan

PLAN: PlanDict = {
    "$schema": "mount-plan.schema.json",
    "session": {
        "orchestrator": "loop-basic",
        "context": {"module": "context-simple", "config": {"max_tokens": 1000}},
        "deadlines": {"turn": 600, "hook": None},
        "strict": True,
        "metadata": {"owner": "anna"},
    },
    "orchestrator": {"config": {"max_iterations": 3}},
    "providers": [{"module": "provider-mock", "instance_id": "fast"}, "provider-offline"],
    "tools": ["tool-todo", {"module": "tool-bash", "source": {"distribution": "other"}}],
    "hooks": [{"module": "hooks-approval", "on_failure": "deny"}],
    "agents": {"helper": {}},
}


def sessions(loose: dict[str, Any]) -> None:
    """Both forms make a session."""
    AmplifierSession(PLAN)
    AmplifierSession(loose)
    AmplifierSession({"session": {"orchestrator": "loop-basic", "context": "context-simple"}})
    assert_type(AmplifierSession(PLAN).config, dict[str, Any])
    assert_type(merge_plans(PLAN, {"tools": []}), dict[str, Any])
    check_plan(PLAN)
    parse_plan(PLAN)


def rejected() -> None:
    """What the schema forbids is a type error."""
    no_context: PlanDict = {"session": {"orchestrator": "loop-basic"}}  # type: ignore[typeddict-item]  # pyright: ignore[reportAssignmentType]
    wrong: HookDict = {"module": "hooks-approval", "on_failure": "block"}  # type: ignore[typeddict-item]  # pyright: ignore[reportAssignmentType]
    misspelt: HookDict = {"module": "hooks-approval", "on_fail": "deny"}  # type: ignore[typeddict-unknown-key]  # pyright: ignore[reportAssignmentType]
    check_plan((no_context, wrong, misspelt))
