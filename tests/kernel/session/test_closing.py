"""The end of a session that had nothing to wait for before, or that is opened again at once. Time is virtual."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import ExecutionCancelled, SessionStateError
from amplifier.kernel.session.turn import Turn
from tests._support.small_agent import agent

pytestmark = pytest.mark.virtual_time


async def at_once(turn: Any) -> str:
    return "done"


async def sleep_forever(turn: Any) -> str:
    await anyio.sleep_forever()
    return "never"


def failing_cleanup() -> None:
    raise ValueError("cleanup")


async def test_async_handlers_get_cleanup_failure():
    heard: list[str] = []

    async def handler(event: str, data: dict[str, Any]) -> None:
        heard.append(event)

    async def mount(coordinator: Any, config: dict[str, Any]) -> None:
        coordinator.hooks.register("cleanup:failed", handler, name="listener")
        coordinator.register_cleanup(failing_cleanup)

    async with agent(at_once, hooks={"hooks-x": mount}) as session:
        await session.execute("go")
    assert heard == ["cleanup:failed"]


async def test_cleanup_registered_while_closing_may_wait():
    log: list[str] = []

    async def late() -> None:
        log.append("late begins")
        await anyio.sleep(1)
        log.append("late ends")

    async def mount(coordinator: Any, config: dict[str, Any]) -> None:
        coordinator.hooks.register(
            "cleanup:failed", lambda event, data: coordinator.register_cleanup(late)
        )
        coordinator.register_cleanup(failing_cleanup)

    async with agent(at_once, hooks={"hooks-x": mount}) as session:
        pass
    assert log == ["late begins", "late ends"]
    assert [failure.what for failure in session.cleanup_failures] == ["cleanup"]


async def test_stale_cleanup_leaves_next_opening_whole():
    """The session is closed and opened again before the waiting call gets to run."""
    log: list[str] = []
    mounts = 0
    gates = [anyio.Event(), anyio.Event()]

    async def mount(coordinator: Any, config: dict[str, Any]) -> None:
        nonlocal mounts
        number, mounts = mounts, mounts + 1
        coordinator.register_cleanup(
            lambda: log.append(f"cleanup {number} while {session.statistics().state}")
        )
        await gates[number].wait()

    session = agent(at_once, hooks={"hooks-x": mount})

    async def open_twice() -> None:
        await session.initialize()
        await session.cleanup()
        await session.initialize()
        log.append("open again")

    async def close() -> None:
        await session.cleanup()
        log.append("closed")

    async with anyio.create_task_group() as group:
        group.start_soon(open_twice)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(close)
        await anyio.wait_all_tasks_blocked()
        gates[0].set()
        await anyio.wait_all_tasks_blocked()
        gates[1].set()
    assert log.count("cleanup 0 while closing") == 1
    assert "cleanup 1 while opening" not in log
    await session.cleanup()
    assert log.count("cleanup 1 while closing") == 1


# ── children ─────────────────────────────────────────────────────────────────────────────────────


async def test_closing_stops_turn_of_child():
    begun, ended = anyio.Event(), anyio.Event()
    problems: list[Any] = []

    async def wait_for_ever(turn):
        begun.set()
        await anyio.sleep_forever()

    async def run_child(parent):
        async with parent.fork(session_id="child") as child:
            for _ in range(2):
                try:
                    await child.execute("go")
                except ExecutionCancelled as error:
                    problems.append(error.reason)
        ended.set()

    async with anyio.create_task_group() as group:
        async with agent(wait_for_ever) as parent:
            group.start_soon(run_child, parent)
            await begun.wait()
        await ended.wait()
    assert problems == ["the session it was forked from was closed"] * 2


async def test_child_of_closed_parent_is_not_opened():
    async with agent() as parent:
        child = parent.fork(session_id="child")
    with pytest.raises(
        SessionStateError,
        match=r"session 'child' cannot be opened: session .* is closed; open and close",
    ):
        async with child:
            pytest.fail("it was opened")
    async with parent, child:
        assert await child.execute("hello") == "hello"


async def test_closing_cancels_unstarted_turn():
    async def body(turn):
        await anyio.sleep_forever()

    async def execute():
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")

    session = agent(body)
    await session.initialize()
    async with anyio.create_task_group() as group:
        group.start_soon(execute)
        while not session.statistics().turn_running:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(1):
            await session.cleanup()
    assert session.cleanup_failures == []


async def test_turn_cancelled_before_it_has_a_scope_is_stopped():
    async with agent(sleep_forever) as session:
        turn = Turn(session.coordinator, session.status, None, None, "go", None, None)
        assert await turn.cancel_and_wait(0) is False
        with pytest.raises(ExecutionCancelled, match="its session was closed"):
            await turn.run()


async def test_call_in_flight_gets_five_seconds():
    ended: list[float] = []

    async def hang(event, data):
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(anyio.current_time())

    session = agent()
    await session.initialize()
    session.coordinator.hooks.register("custom:event", hang)

    async def end_late():
        await anyio.sleep(20)

    session.coordinator.register_cleanup(end_late)
    async with anyio.create_task_group() as group:
        group.start_soon(session.coordinator.hooks.emit, "custom:event")
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        await session.cleanup()
    assert [at - began for at in ended] == [pytest.approx(5, abs=0.1)]
