"""The budget of a run: from options to the plan, and what was used of it for the report."""

from __future__ import annotations

from typing import Any

from amplifier.budget import Budget
from amplifier.plan import merge_plans

__all__ = ["budget_as_json", "budget_text", "with_budget"]

_LIMITS = ("tokens", "cost", "model_calls", "tool_calls", "seconds")


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
    parts = [
        f"{_number(getattr(used, name))} of {_number(getattr(limits, name))} {_unit(name, limits.currency)}"
        for name in _LIMITS
        if getattr(limits, name) is not None
    ]
    return f"{', '.join(parts)} used" if parts else None


def budget_as_json(budget: Budget | None) -> dict[str, Any] | None:
    """The same for programs; money as text."""
    if budget is None:
        return None
    values = {"used": budget.used, "limits": budget.limits}
    shown = {
        key: {name: _plain(getattr(value, name)) for name in _LIMITS if getattr(budget.limits, name) is not None}
        for key, value in values.items()
    }
    return {**shown, "currency": budget.limits.currency}


def _unit(name: str, currency: str) -> str:
    return {"cost": currency, "seconds": "s"}.get(name, name.replace("_", " "))


def _number(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else f"{value:f}"


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value)
