"""Responses to concurrent requests, compared with those to the same requests sent alone."""

from __future__ import annotations

import pytest

from amplifier.conformance.checks.provider.behaviour import check_mixture
from amplifier.models import ChatResponse, TextBlock


class Faults:
    """Collects the clauses that a rule reports."""

    def __init__(self) -> None:
        self.clauses: list[str] = []

    def fault(self, clause: str, what: str) -> None:
        self.clauses.append(clause)


def answer(text: str) -> ChatResponse:
    return ChatResponse(content=[TextBlock(text=text)])


@pytest.mark.parametrize(
    ("alone", "together", "found"),
    [
        (["1zebra"] * 3, "1zebra", []),
        (["1zebra"] * 3, "2zebra", ["P14"]),
        (["1zebra"] * 3, "nothing", ["P14"]),
        (["1zebra"] * 3, "1zebra and more", ["P14"]),
        (["1zebra at noon", "1zebra at noon", "1zebra at one"], "1zebra at one", []),
        (["a", "b", "c"], "d", []),
    ],
)
def test_a_difference_is_reported_only_if_neither_time_nor_chance_explains_it(alone, together, found):
    faults = Faults()
    check_mixture(faults, 1, [answer(text) for text in alone], answer(together))  # type: ignore[arg-type]
    assert faults.clauses == found
