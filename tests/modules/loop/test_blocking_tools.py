"""A tool that blocks the event loop is named when the loop runs again."""

from __future__ import annotations

import logging
import traceback
from types import CoroutineType
from typing import Any

import anyio
import pytest

from amplifier import agent, tool
from amplifier.modules.loop import _blocking
from amplifier.modules.loop._blocking import named_if_blocking
from amplifier.testing import script


class Clock:
    """The clock that steps are timed with: it passes when a tool blocks, however slow the machine is."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


clock = Clock()


@pytest.fixture(autouse=True)
def own_clock(monkeypatch):
    monkeypatch.setattr(_blocking, "perf_counter", clock)


def block() -> None:
    """Stand for `time.sleep`, or anything else that keeps a thread for itself."""
    clock.now += 1.5


async def at_once() -> str:
    """Block in the first step."""
    block()
    return "done"


async def later() -> str:
    """Block after an await."""
    await anyio.lowlevel.checkpoint()
    block()
    return "done"


@tool(quick=True)
def quick() -> str:
    """Block in place."""
    block()
    return "done"


async def cleaning() -> str:
    """Block while it is stopped."""
    try:
        with anyio.move_on_after(0):
            await anyio.sleep_forever()
    finally:
        block()
    return "done"


async def waiting() -> str:
    """Wait longer than that, and block nothing."""
    block_elsewhere = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_pass_time, block_elsewhere)
        await block_elsewhere.wait()
    return "done"


async def _pass_time(event: anyio.Event) -> None:
    block()
    event.set()


@pytest.mark.parametrize(
    ("function", "is_named"),
    [(at_once, True), (later, True), (quick, True), (cleaning, True), (waiting, False)],
)
async def test_blocking_tool_is_named(function, is_named, caplog):
    with caplog.at_level(logging.WARNING):
        async with agent(script((function.__name__, {}), "Done."), tools=[function]) as session:
            await session.execute("go")
            assert session.last_turn.tool_calls[0].output == "done"
    named = [
        record.getMessage()
        for record in caplog.records
        if "blocked the event loop" in record.getMessage()
    ]
    assert len(named) == is_named
    for message in named:
        assert message.startswith(
            f"the tool {function.__name__!r} blocked the event loop for 1.5 s"
        )
        assert "asyncio.to_thread" in message


async def test_sub_agent_is_not_blamed_for_tool(caplog):
    helper = agent(
        script(("at_once", {}), "Done."), tools=[at_once], name="helper", description="Helps."
    )
    model = script(("task", {"agent": "helper", "instruction": "go"}), "Done.")
    with caplog.at_level(logging.WARNING):
        async with agent(model, tools=[helper]) as session:
            await session.execute("go")
            assert session.last_turn.tool_calls[0].success
    named = [
        record.getMessage()
        for record in caplog.records
        if "blocked the event loop" in record.getMessage()
    ]
    assert [message.partition(" for ")[0] for message in named] == [
        "the tool 'at_once' blocked the event loop"
    ]


async def test_watched_coroutine_is_transparent():
    """Errors, results and cancellations pass, and the chain of awaits leads on into the tool."""

    async def quiet() -> str:
        await anyio.sleep_forever()
        return "done"

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        await named_if_blocking(fail(), "fail")  # type: ignore[arg-type]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fail"

    inner: CoroutineType[Any, Any, str] = quiet()  # type: ignore[assignment]
    watched = named_if_blocking(inner, "quiet")
    assert (watched.cr_frame, watched.cr_code, watched.cr_await) == (
        inner.cr_frame,
        inner.cr_code,
        None,
    )
    assert not watched.cr_running
    watched.close()
    assert inner.cr_frame is None

    with anyio.CancelScope() as scope:
        scope.cancel()
        await named_if_blocking(quiet(), "quiet")  # type: ignore[arg-type]
    assert scope.cancelled_caught
