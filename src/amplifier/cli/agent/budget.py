"""The budget of a run: from options to the plan, and what was used of it for the report."""

from __future__ import annotations

from typing import Any

from amplifier.budget import Budget
from amplifier.budget._budget import COUNTED, plain, shown
from amplifier.plan import merge_plans

__all__ = ["budget_as_json", "budget_text", "with_budget"]


def with_budget(plan: dict[str, Any], *, cost: float | None, tokens: int | None) -> dict[str, Any]:
    """The plan with the limits that the user gave instead of its own."""
    given = {name: value for name, value in (("cost", cost), ("tokens", tokens)) if value is not None}
    is_plan = given and isinstance(plan.get("session"), dict)
    return merge_plans(plan, {"session": {"budget": given}}) if is_plan else plan


def budget_text(budget: Budget | None) -> str | None:
    """What was used of each limit; None without limits."""
    if budget is None:
        return None
    used, limits = budget.used, budget.limits
    units = {"cost": limits.currency, "seconds": "s"}
    parts = [
        f"{shown(getattr(used, name))} of {shown(getattr(limits, name))} {units.get(name, name.replace('_', ' '))}"
        for name in COUNTED
        if getattr(limits, name) is not None
    ]
    return f"{', '.join(parts)} used" if parts else None


def budget_as_json(budget: Budget | None) -> dict[str, Any] | None:
    """The same for programs; money as text."""
    if budget is None:
        return None
    values = {"used": budget.used, "limits": budget.limits}
    described = {
        key: {name: plain(getattr(value, name)) for name in COUNTED if getattr(budget.limits, name) is not None}
        for key, value in values.items()
    }
    return {**described, "currency": budget.limits.currency}
