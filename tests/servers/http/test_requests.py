"""Errors of turns as HTTP responses: a program can tell a refusal from an answer and from a failure."""

from __future__ import annotations

import pytest

from amplifier.errors import BudgetError, BudgetExceeded, ExecutionDenied
from amplifier.servers.http.requests import problem_of


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BudgetExceeded("no", what="cost"), 402, "budget_exceeded"),
        (BudgetError("no price"), 503, "agent_failed"),
        (ExecutionDenied("no", event="prompt:submit"), 403, "denied"),
        (ExceptionGroup("several", [BudgetExceeded("no")]), 402, "budget_exceeded"),
    ],
)
def test_refused_turn_has_status_and_code(error, status, code):
    problem = problem_of(error)
    assert (problem.status, problem.code) == (status, code)
