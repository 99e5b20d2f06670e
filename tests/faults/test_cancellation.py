"""Faults F32–F37: stopping turns from inside and outside, and how errors leave them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier import ContractError, ExecutionCancelled, RateLimitError
from amplifier.errors import NetworkError
from tests._support.small_agent import agent, give_up_after, heard

pytestmark = pytest.mark.virtual_time


# ── F32, F33: through the token ──────────────────────────────────────────────────────────────────


async def test_f32_stopping_parent_stops_working_child():
    log: list[str] = []

    async def body(turn):
        session = turn.coordinator.session
        if session.parent_id is not None:
            try:
                await anyio.sleep_forever()
            finally:
                log.append("child turn left")
        try:
            async with session.fork() as child:
                await child.execute("help")
        finally:
            log.append(f"child is {child.statistics().state}")

    async with agent(body) as session:

        async def stop():
            await anyio.sleep(1)
            session.coordinator.request_cancel(immediate=True)

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            began = anyio.current_time()
            with pytest.raises(ExecutionCancelled):
                await session.execute("go")
        assert anyio.current_time() - began == pytest.approx(1)
    assert log == ["child turn left", "child is closed"]


async def test_f33_immediate_stop_unwinds_waiting_turn():
    async def body(turn):
        turn.coordinator.cancellation.register_tool_start("1", "bash")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            await turn.hooks.emit("execution:end", {"status": "cancelled"})

    async def stop():
        await anyio.sleep(3)
        session.coordinator.cancellation.request_immediate(reason="why")

    session = agent(body)
    session.coordinator.cancellation.on_cancel(lambda: events.append(("callback", {})))
    events = heard(session, "cancel:requested", "cancel:completed", "execution:end")
    async with session, anyio.create_task_group() as group:
        group.start_soon(stop)
        with pytest.raises(
            ExecutionCancelled, match=r"was cancelled: it was stopped \(why\)"
        ) as caught:
            await session.execute("hi")
        assert anyio.current_time() == pytest.approx(4)
        error = caught.value
        assert (error.session_id, error.was_immediate, error.reason) == (
            session.session_id,
            True,
            "why",
        )
        assert session.status.status == "cancelled"
    assert [event for event, _ in events] == [
        "cancel:requested",
        "callback",
        "execution:end",
        "cancel:completed",
    ]
    expected = {"state": "immediate", "grace": None, "reason": "why", "running_tools": ["bash"]}
    assert events[0][1].items() >= expected.items()
    assert events[-1][1]["was_immediate"] is True


# ── F34: from outside ────────────────────────────────────────────────────────────────────────────


def working(log):
    """A turn that writes once a second and takes its time to unwind."""

    async def body(turn):
        if turn.prompt == "again":
            return "again"
        try:
            while True:
                await turn.context.add_message("work")
                await anyio.sleep(1)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
            await turn.context.add_message("unwound")
            log.append("turn left")

    return body


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f34_cancelled_execute_waits_for_turn(
    how,
):
    """It returns only when the turn has left, and another turn can run."""
    log: list[str] = []
    async with agent(working(log)) as session:
        await give_up_after(3.5, how, session.execute, "go")
        log.append("execute left")
        written = list(session.coordinator.get("context").messages)
        await anyio.sleep(1000)
        assert log == ["turn left", "execute left"]
        assert session.coordinator.get("context").messages == written == ["work"] * 4 + ["unwound"]
        assert session.status.status == "cancelled"
        assert await session.execute("again") == "again"


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f34b_nothing_is_written_after_closing(how):
    log: list[str] = []
    session = agent(working(log))
    await session.initialize()
    context = session.coordinator.get("context")
    await give_up_after(1.5, how, session.execute, "go")
    await session.cleanup()
    written = list(context.messages)
    await anyio.sleep(1000)
    assert context.messages == written
    assert log == ["turn left"]


# ── F35–F37: how a turn ends ─────────────────────────────────────────────────────────────────────


def ending_with(outcome):
    async def body(turn):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return body


async def test_f35_typed_error_crosses_kernel_unchanged():
    error = RateLimitError("slow down", provider="p", retry_after=12.5)
    error.__cause__ = OSError("socket")
    async with agent(ending_with(error)) as session:
        with pytest.raises(RateLimitError) as caught:
            await session.execute("go")
        assert session.status.status == "failed"
        assert session.status.last_error == {"type": "RateLimitError", "message": "slow down"}
    assert caught.value is error
    assert caught.value.retry_after == 12.5
    assert isinstance(caught.value.__cause__, OSError)


async def test_f36_exception_group_passes_intact():
    group = ExceptionGroup("g", [ValueError("a"), NetworkError("b")])
    handled: list[Any] = []
    async with agent(ending_with(group)) as session:
        try:
            await session.execute("go")
        except* NetworkError as found:
            handled.append(found.exceptions)
        except* ValueError as found:
            handled.append(found.exceptions)
    assert handled == [(group.exceptions[1],), (group.exceptions[0],)]


@pytest.mark.parametrize("outcome", [None, b"bytes", 7, ["text"], "lone \ud800 surrogate"])
async def test_f37_turn_without_text_breaks_contract(outcome):
    async with agent(ending_with(outcome)) as session:
        with pytest.raises(ContractError, match="orchestrator Loop returned") as caught:
            await session.execute("go")
        assert caught.value.module == "Loop"
        assert session.status.status == "failed"
        with pytest.raises(TypeError, match="prompt must be a str"):
            await session.execute(b"bytes")  # type: ignore[arg-type]
