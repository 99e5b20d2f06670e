"""Calls that refuse to be cancelled are reported, again and again, and never taken for gone. Time is virtual."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.errors import ModuleLoadError
from amplifier.kernel.runtime.deadlines import DeadlinePassed
from amplifier.kernel.runtime.watchdog import UNWIND_GRACE, Unresponsive, Watchdog
from tests._support.small_agent import Turn, agent, heard
from tests.kernel.runtime.deadline_calls import Calls

pytestmark = pytest.mark.virtual_time


class Reports:
    """A watch with a task group for its timers, and what it reported when."""

    def __init__(self) -> None:
        self.watch = Watchdog(self._take)
        self.taken: list[tuple[float, Unresponsive]] = []
        self.began = 0.0

    def _take(self, report: Unresponsive) -> None:
        self.taken.append((round(anyio.current_time() - self.began, 3), report))

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.taken]


def none(_: object) -> None:
    """Drop what a call gives back."""


@asynccontextmanager
async def reporting() -> AsyncIterator[Reports]:
    reports = Reports()
    async with anyio.create_task_group() as group:
        reports.watch.start(lambda fn: none(group.start_soon(fn)))
        reports.began = anyio.current_time()
        yield reports
        reports.watch.stop()


async def refuse(seconds: float) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)


async def call(series: Calls, awaitable: Any, seconds: float | None, label: str = "call") -> None:
    with suppress(DeadlinePassed):
        await series.run(awaitable, seconds, label)


@pytest.mark.parametrize(
    ("made", "times"),
    [
        (lambda: anyio.sleep(4), []),
        (lambda: refuse(5 + UNWIND_GRACE * 0.9), []),
        (lambda: refuse(40), [6, 8, 12, 20, 36]),
    ],
    ids=["ends in time", "unwinds within a second", "refuses"],
)
async def test_stubborn_call_is_reported_at_growing_intervals(made, times):
    async with reporting() as reports:
        series = Calls(reports.watch)
        await call(series, made(), 5)
        series.close()
        await anyio.sleep(1000)
    assert reports.times == times


async def test_report_names_call_task_and_times():
    async with reporting() as reports:
        series = Calls(reports.watch)
        await call(series, refuse(9), 5, "handler 'slow'")
        series.close()
    (_, first), (_, second) = reports.taken
    assert (first.label, first.seconds) == ("handler 'slow'", 5)
    assert [first.overdue, second.overdue] == pytest.approx([1, 3])
    assert first.where.endswith("in refuse")
    assert "test_watchdog.py:" in first.where
    assert first.task


@pytest.mark.parametrize("before", [300, None], ids=["a longer one", "none"])
async def test_short_deadline_after_long_is_noticed(before):
    async with reporting() as reports:
        series = Calls(reports.watch)
        await call(series, anyio.sleep(1), before, "patient")
        await call(series, refuse(4), 2, "refusing")
        series.close()
    assert [(at, report.label) for at, report in reports.taken] == [(4, "refusing")]


async def test_each_call_restarts_report_intervals():
    async with reporting() as reports:
        series = Calls(reports.watch)
        await call(series, refuse(4.5), 1, "first")  # over at 4.5
        await call(series, refuse(4.5), 1, "second")  # deadline at 5.5
        series.close()
    assert [(at, report.label) for at, report in reports.taken] == [
        (2, "first"),
        (4, "first"),
        (6.5, "second"),
        (8.5, "second"),
    ]


async def test_calls_of_tasks_are_reported_separately():
    async with reporting() as reports:

        async def one(seconds: float, label: str) -> None:
            series = Calls(reports.watch)
            await call(series, refuse(seconds + 2), seconds, label)
            series.close()

        async with anyio.create_task_group() as group:
            group.start_soon(one, 9, "long")
            group.start_soon(one, 3, "short")
    assert [(at, report.label) for at, report in reports.taken] == [(4, "short"), (10, "long")]


async def test_finished_calls_deadline_spares_next_one():
    async with reporting() as reports:

        async def neighbour() -> None:
            series = Calls(reports.watch)
            await call(
                series, anyio.sleep(1), 2, "short"
            )  # makes the watch look at everybody after three seconds
            series.close()

        async with anyio.create_task_group() as group:
            group.start_soon(neighbour)
            series = Calls(reports.watch)
            await call(series, anyio.sleep(50), 100, "first")
            await call(
                series, anyio.sleep(90), 100, "second"
            )  # goes on past the deadline of the first
            series.close()
        await anyio.sleep(1000)
    assert reports.taken == []


async def test_stopped_watch_reports_nothing():
    async with reporting() as reports:
        series = Calls(reports.watch)

        async def stop_at(seconds: float) -> None:
            await anyio.sleep(seconds)
            reports.watch.stop()

        async with anyio.create_task_group() as group:
            group.start_soon(stop_at, 7)
            await call(series, refuse(100), 5)
        await call(series, refuse(100), 5)
        await call(series, refuse(100), 2)
        series.close()
    assert reports.times == [6]


async def test_finished_call_is_not_kept_alive():
    async with reporting() as reports:
        series = Calls(reports.watch)
        await series.run(anyio.lowlevel.checkpoint(), 5, "label")
        assert len(reports.watch._tasks) == 1
        series.close()
        assert not reports.watch._tasks


# ── inside a session ─────────────────────────────────────────────────────────────────────────────


def overdue(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if "does not react to its cancellation" in r.getMessage()
    ]


async def test_uncancellable_mount_is_logged_during_opening(caplog):
    async def mount(coordinator: Any, config: Any) -> None:
        await refuse(4)

    session = agent(hooks={"hooks-stubborn": mount}, session={"deadlines": {"mount": 2}})
    began = anyio.current_time()
    async with session:
        assert anyio.current_time() - began == pytest.approx(4)
        assert [failure.module_id for failure in session.failures] == ["hooks-stubborn"]
    (logged,) = overdue(caplog)
    assert "mount of module 'hooks-stubborn'" in logged
    assert "it had 2 s and is 1 s over" in logged


async def test_uncancellable_cleanup_of_opening_is_logged(caplog):
    async def mount(coordinator: Any, config: Any) -> None:
        raise ValueError("wrong")

    session = agent(context=mount, session={"deadlines": {"cleanup": 2}})
    session.coordinator.register_cleanup(lambda: refuse(4))
    with pytest.raises(ModuleLoadError):
        await session.__aenter__()
    (logged,) = overdue(caplog)
    assert "cleanup of the application" in logged


async def test_uncancellable_collected_handler_is_announced():
    heard: list[dict[str, Any]] = []

    async def mount(coordinator: Any, config: Any) -> None:
        async def stubborn(event: str, data: dict[str, Any]) -> None:
            await refuse(3)

        coordinator.hooks.register("tool:pre", stubborn, name="stubborn")

    async with agent(hooks={"hooks-stubborn": mount}) as session:
        session.coordinator.hooks.register(
            "module:unresponsive", lambda event, data: heard.append(data)
        )
        assert await session.coordinator.hooks.emit_and_collect("tool:pre", {}, timeout=1) == []
    assert [details["module_id"] for details in heard] == ["hooks-stubborn"]


async def test_tool_of_a_loop_that_refuses_its_deadline_is_announced():
    async def body(turn: Turn) -> str:
        return str(await turn.coordinator.call_within(5, "tool 'slow'", refuse_then_answer))

    async def refuse_then_answer() -> str:
        await refuse(7)
        return "late"

    session = agent(body)
    events = heard(session, "module:unresponsive")
    async with session:
        assert await session.execute("go") == "late"
    assert [data["operation"] for _, data in events] == ["tool 'slow'"]
