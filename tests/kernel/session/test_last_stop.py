"""What a stop ended and what would not stop: ``session.last_stop`` after cancelled turns, deadlines and closings."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession, ExecutionCancelled, ExecutionTimeout
from amplifier.models.turns import StopReport
from amplifier.testing import MockProvider, MockTool
from tests._support.small_agent import agent
from tests.kernel.session.test_last_turn import asking, plan_of, saying

pytestmark = pytest.mark.virtual_time


def outcomes(report: StopReport | None) -> list[tuple[str, str | None, str]]:
    assert report is not None
    assert all(part.seconds is None or part.seconds >= 0 for part in report.parts)
    return [(part.what, part.module, part.outcome) for part in report.parts]


async def at_once(turn: Any) -> str:
    return "done"


async def test_successful_turn_stops_nothing():
    async with AmplifierSession(plan_of(MockProvider([saying("Done.")]))) as session:
        assert session.last_stop is None
        await session.execute("go")
        assert session.last_stop is None


async def test_cancelled_turn_names_stopped_tools():
    answers = [asking(("1", "quick", {}), ("2", "slow", {}))]
    tools = MockTool("quick", return_value=1), MockTool("slow", delay=60)
    async with AmplifierSession(plan_of(MockProvider(answers), *tools)) as session:

        async def stop() -> None:
            await anyio.sleep(5)
            session.coordinator.cancellation.request_immediate(reason="enough")

        completed: list[dict[str, Any]] = []
        session.coordinator.hooks.register(
            "cancel:completed", lambda event, data: completed.append(data)
        )
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            with pytest.raises(ExecutionCancelled):
                await session.execute("go")
        report = session.last_stop
        assert [
            [(part["what"], part["outcome"]) for part in data["stopped"]] for data in completed
        ] == [[("tool call slow", "ended"), ("turn", "ended")]]
        assert outcomes(report) == [("tool call slow", None, "ended"), ("turn", None, "ended")]
        assert report is not None
        assert report.cause == "cancelled"
        assert report.would_not_stop == []


async def test_turn_timeout_is_stop():
    answers = [asking(("1", "slow", {}))]
    async with AmplifierSession(
        plan_of(MockProvider(answers), MockTool("slow", delay=60))
    ) as session:
        with pytest.raises(ExecutionTimeout):
            await session.execute("go", timeout=2)
        report = session.last_stop
    assert report is not None
    assert report.cause == "timeout"
    assert ("tool call slow", None, "ended") in outcomes(report)


async def test_closing_names_cleanups_and_failures():
    async def stuck() -> None:
        await anyio.sleep(3600)

    def broken() -> None:
        raise ValueError("no key=sk-ant-1234567890abcdef")

    async def mount(coordinator: Any, config: dict[str, Any]) -> None:
        for cleanup in (stuck, broken, lambda: None):
            coordinator.register_cleanup(cleanup)

    async with agent(at_once, hooks={"hooks-x": mount}) as session:
        await session.execute("go")
        assert session.last_stop is None
    report = session.last_stop
    found = [each for each in outcomes(report) if each[1] == "hooks-x"]
    assert found == [("cleanup", "hooks-x", how) for how in ("ended", "failed", "abandoned")]
    assert report is not None
    assert [part.module for part in report.would_not_stop] == ["hooks-x"]
    assert not any("sk-ant-1234567890abcdef" in part.error for part in report.parts)
