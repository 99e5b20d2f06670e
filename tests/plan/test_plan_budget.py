"""``session.budget`` of a plan: what is read, and what is wrong with the rest."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.errors import PlanError
from amplifier.plan import BudgetLimits, TokenPrice, check_plan, parse_plan, plan_schema

SESSION: dict[str, Any] = {"orchestrator": "loop-basic", "context": "context-simple"}


def plan(budget: Any) -> dict[str, Any]:
    return {"session": {**SESSION, "budget": budget}}


def test_budget_is_read():
    given_ = {
        "tokens": 1_000,
        "cost": 0.1,
        "currency": "EUR",
        "model_calls": 0,
        "tool_calls": None,
        "seconds": 5,
        "warn_at": 1,
        "unknown_price": "allow",
        "prices": {"m": {"input_per_million": "0.30", "output_per_million": 2}},
    }
    assert parse_plan(plan(given_)).budget == BudgetLimits(
        tokens=1_000,
        cost=Decimal("0.1"),
        currency="EUR",
        model_calls=0,
        seconds=5.0,
        warn_at=1.0,
        unknown_price="allow",
        prices={"m": TokenPrice(input_per_million=Decimal("0.30"), output_per_million=Decimal(2))},
    )


@pytest.mark.parametrize(
    ("budget", "path", "words"),
    [
        (5, "", "a mapping of limits by name (tokens, cost"),
        ({"tokns": 5}, ".tokns", "did you mean 'tokens'?"),
        ({"deepest": 5}, ".deepest", "unknown key; known are tokens, cost"),
        ({"tokens": -1}, ".tokens", "a whole number, 0 or more, or null for no limit, got -1"),
        ({"tokens": 1.5}, ".tokens", "got 1.5"),
        ({"tokens": "5"}, ".tokens", "got '5'"),
        ({"model_calls": True}, ".model_calls", "got True"),
        ({"tool_calls": []}, ".tool_calls", "got"),
        ({"cost": -0.5}, ".cost", "an amount of money, 0 or more"),
        ({"cost": "1e3"}, ".cost", "such as 0.5 or '0.50', or null for no limit, got '1e3'"),
        ({"cost": float("nan")}, ".cost", "got nan"),
        ({"cost": float("inf")}, ".cost", "got inf"),
        ({"cost": False}, ".cost", "got False"),
        ({"cost": 10**5000}, ".cost", "an amount of money"),
        ({"seconds": 0}, ".seconds", "more than 0"),
        ({"seconds": "60"}, ".seconds", "got '60'"),
        ({"warn_at": 1.5}, ".warn_at", "at most 1"),
        ({"currency": "euro"}, ".currency", "three capital letters"),
        ({"unknown_price": "alow"}, ".unknown_price", "did you mean 'allow'?"),
        ({"prices": []}, ".prices", "a mapping of model names to prices"),
        (
            {"prices": {"m": 5}},
            ".prices.m",
            "a mapping of input_per_million and output_per_million",
        ),
        (
            {"prices": {"m": {"input_per_million": 1, "output_per_million": -1}}},
            ".prices.m.output_per_million",
            "got -1",
        ),
        (
            {
                "prices": {
                    "m": {"input_per_million": 1, "output_per_million": 1, "output_per_milion": 1}
                }
            },
            ".prices.m.output_per_milion",
            "did you mean 'output_per_million'?",
        ),
    ],
)
def test_wrong_budget_is_problem_with_path(budget, path, words):
    with pytest.raises(PlanError) as caught:
        parse_plan(plan(budget))
    [(where, text)] = caught.value.problems
    assert where == f"$.session.budget{path}"
    assert words in text


values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["0.5", "USD", "allow", {}, []])
)
budgets = st.dictionaries(
    st.sampled_from(
        ["tokens", "cost", "currency", "seconds", "warn_at", "unknown_price", "prices", "tokes"]
    ),
    values,
)
SCHEMA = jsonschema_rs.validator_for(plan_schema())


@given(budgets)
def test_budget_without_problems_keeps_schema(budget):
    found, _ = check_plan(plan(budget))
    if not found:
        SCHEMA.validate(plan(budget))
