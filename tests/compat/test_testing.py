"""The published test doubles, as published suites use them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def doubles(alias: None) -> ModuleType:
    """The mirror's ``testing``."""
    import amplifier_core.testing  # type: ignore[import-not-found]

    found: ModuleType = amplifier_core.testing
    return found


async def test_scripted_orchestrator_runs_in_session(doubles: ModuleType):
    """On the published kernel it cannot: it does not take the coordinator that every session passes."""
    orchestrator = doubles.ScriptedOrchestrator(["one"])
    coordinator = doubles.create_test_coordinator()

    answers = [
        await orchestrator.execute(
            "p", coordinator.get("context"), {}, {}, coordinator.hooks, coordinator=coordinator
        )
        for _ in range(2)
    ]

    assert answers == ["one", "DONE"]
    assert sorted(coordinator.get("tools")) == ["echo", "fail"]


def test_coordinator_subclass_may_have_any_constructor(doubles: ModuleType):
    base: Any = doubles.MockCoordinator

    class Own(base):  # type: ignore[misc]  # the alias has no types
        def __init__(self) -> None:
            super().__init__()
            self.mine: list[str] = []

    coordinator = Own()
    coordinator.todo_state = ["x"]

    assert (coordinator.mine, coordinator.todo_state, coordinator.mount_history) == ([], ["x"], [])
