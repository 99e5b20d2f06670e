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


async def test_a_mock_coordinator_keeps_a_history(doubles: ModuleType):
    coordinator = doubles.MockCoordinator()
    tool = doubles.MockTool("t")

    await coordinator.mount("tools", tool, name="t")
    await coordinator.unmount("tools", name="t")

    assert coordinator.mount_history == [{"mount_point": "tools", "module": tool, "name": "t"}]
    assert coordinator.unmount_history == [{"mount_point": "tools", "name": "t"}]
    assert (coordinator.session_id, coordinator.get("tools")) == ("test-session", {})


async def test_a_mock_tool_counts_and_can_be_asked_what_it_was_called_with(doubles: ModuleType):
    tool = doubles.MockTool(output={"n": 1})

    result = await tool.execute({"a": 1})

    tool.execute.assert_called_once_with({"a": 1})
    assert (result.success, result.output, tool.call_count) == (True, {"n": 1}, 1)


async def test_a_mock_context_keeps_what_it_was_given(doubles: ModuleType):
    context = doubles.MockContextManager()

    await context.add_message({"role": "user", "content": "x"})

    assert await context.get_messages_for_request(provider=None) == [{"role": "user", "content": "x"}]
    assert context.add_message.called


async def test_a_recorder_replaces_hooks(doubles: ModuleType):
    recorder = doubles.EventRecorder()

    result = await recorder.emit("a", {"n": 1})
    await recorder.record("b", {})

    assert result.action == "continue"
    assert recorder.get_events("a") == [("a", {"n": 1})]
    assert len(recorder.get_events()) == 2
    recorder.clear()
    assert recorder.events == []


async def test_a_scripted_orchestrator_runs_inside_a_session(doubles: ModuleType):
    """On the published kernel it cannot: it does not take the coordinator that every session passes."""
    orchestrator = doubles.ScriptedOrchestrator(["one"])
    coordinator = doubles.create_test_coordinator()

    answers = [
        await orchestrator.execute("p", coordinator.get("context"), {}, {}, coordinator.hooks, coordinator=coordinator)
        for _ in range(2)
    ]

    assert answers == ["one", "DONE"]
    assert sorted(coordinator.get("tools")) == ["echo", "fail"]


async def test_waiting_ends_with_the_condition_or_with_the_time(doubles: ModuleType):
    asked: list[int] = []

    def third() -> bool:
        asked.append(1)
        return len(asked) >= 3

    assert await doubles.wait_for(third) is True
    assert await doubles.wait_for(lambda: False, timeout=0.03) is False


def test_a_subclass_of_the_coordinator_may_have_any_constructor(doubles: ModuleType):
    base: Any = doubles.MockCoordinator

    class Own(base):  # type: ignore[misc]  # the alias has no types
        def __init__(self) -> None:
            super().__init__()
            self.mine: list[str] = []

    coordinator = Own()
    coordinator.todo_state = ["x"]

    assert (coordinator.mine, coordinator.todo_state, coordinator.mount_history) == ([], ["x"], [])
