"""A tree of sessions on one budget, cancelled at every suspension: nothing stays held, and no limit is passed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from amplifier.testing import MODES, cancel_everywhere

from .test_children import Call, Node, World

TREE = Node(
    (
        Call(
            50,
            0.5,
            False,
            (Node((Call(100, 1.0, False), Call(10, 0.0, False))), Node((Call(100, 1.0, False),))),
        ),
        Call(20, 0.0, False),
    ),
    {"tokens": 4_500, "cost": "4.5", "model_calls": 10, "tool_calls": 5, "seconds": 100},
)
"""Two children at the same time, of which the second has to wait: two worst cases of 2,000 output tokens do not fit."""


class CancelledTree(World):
    """What has to hold when a trial is over."""

    def __init__(self) -> None:
        super().__init__(TREE)

    def check(self) -> Iterable[str]:
        service = self.service
        yield from (
            f"{key} has passed its limit of {what}: {amount}"
            for key, what, amount in service.passed
        )
        yield from (f"the transcript of {key} has calls without results" for key in service.torn)
        for session in self.sessions:
            budget = session.budget
            if budget is not None and (
                budget._held_tokens or budget._held_cost or budget._running_turns
            ):
                yield f"{budget!r} holds something for a call or a turn that is over"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", MODES)
def test_budget_is_empty_after_any_cancellation(mode):
    cancel_everywhere(CancelledTree, modes=(mode,), second_after=(1, 3)).raise_if_broken()


@pytest.mark.parametrize("mode", MODES)
def test_budget_is_empty_after_sampled_cancellation(mode):
    report = cancel_everywhere(CancelledTree, modes=(mode,), second_after=(1,), max_points=25)
    report.raise_if_broken()
    assert report.total_trials > 10
