"""Faults F32–F37: stopping turns from inside and outside, and how errors leave them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier import ContractError, ExecutionCancelled, RateLimitError
from amplifier.errors import NetworkError
from tests._support.small_agent import agent, give_up_after, heard

pytestmark = pytest.mark.virtual_time


async def stop_after_a_second(session):
    """Ask for an immediate stop."""
    await anyio.sleep(1)
    session.coordinator.request_cancel(immediate=True)


# ── F32, F33: through the token ──────────────────────────────────────────────────────────────────


async def test_f32_stopping_a_parent_stops_its_working_child():
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
        async with anyio.create_task_group() as group:
            group.start_soon(stop_after_a_second, session)
            began = anyio.current_time()
            with pytest.raises(ExecutionCancelled):
                await session.execute("go")
        assert anyio.current_time() - began == pytest.approx(1)
    assert log == ["child turn left", "child is closed"]


async def test_f32_child_that_works_beside_its_parent_is_stopped_with_it():
    async def body(turn):
        await anyio.sleep_forever()

    async with agent(body) as parent, parent.fork() as child:
        outcomes = []

        async def work():
            try:
                await child.execute("work")
            except ExecutionCancelled:
                outcomes.append("child stopped")

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await anyio.sleep(1)
            parent.coordinator.request_cancel(immediate=True)
        assert outcomes == ["child stopped"]
        assert child.coordinator.cancellation.is_immediate


async def test_f32_closed_child_is_let_go_and_a_late_one_is_born_stopped():
    async with agent() as parent:
        async with parent.fork() as early:
            pass
        parent.coordinator.request_cancel(immediate=True)
        assert not early.coordinator.cancellation.is_cancelled
        async with parent.fork() as late:
            with pytest.raises(ExecutionCancelled):
                await late.execute("x")


async def test_f33_immediate_stop_interrupts_a_waiting_turn_at_once():
    log: list[str] = []

    async def body(turn):
        turn.coordinator.cancellation.on_cancel(lambda: log.append("callback"))
        try:
            await anyio.sleep_forever()
        finally:
            log.append("turn left")

    session = agent(body)
    events = heard(session, "cancel:requested", "cancel:completed")
    async with session:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_after_a_second, session)
            began = anyio.current_time()
            with pytest.raises(ExecutionCancelled) as caught:
                await session.execute("go")
        assert anyio.current_time() - began == pytest.approx(1)
        assert caught.value.was_immediate
        assert session.status.status == "cancelled"
        assert sorted(log) == ["callback", "turn left"]
        assert [event for event, _ in events] == ["cancel:requested", "cancel:completed"]


async def test_f33_graceful_stop_whose_grace_runs_out_becomes_immediate():
    async def body(turn):
        await anyio.sleep_forever()

    async with agent(body) as session:
        session.coordinator.cancellation.request_graceful(grace=30)
        began = anyio.current_time()
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")
        assert anyio.current_time() - began == pytest.approx(30)


# ── F34: from outside ────────────────────────────────────────────────────────────────────────────


def working(log):
    """A turn that writes once a second and takes its time to unwind."""

    async def body(turn):
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
async def test_f34_cancelled_execute_returns_only_when_the_turn_has_left(how):
    log: list[str] = []
    async with agent(working(log)) as session:
        await give_up_after(3.5, how, session.execute, "go")
        log.append("execute left")
        written = list(session.coordinator.get("context").messages)
        await anyio.sleep(1000)
        assert log == ["turn left", "execute left"]
        assert session.coordinator.get("context").messages == written == ["work"] * 4 + ["unwound"]
        assert session.status.status == "cancelled"


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f34_cancelled_session_can_run_another_turn(how):
    async def body(turn):
        if turn.prompt == "hang":
            await anyio.sleep_forever()
        return turn.prompt

    async with agent(body) as session:
        await give_up_after(1, how, session.execute, "hang")
        assert await session.execute("again") == "again"


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f34b_nothing_is_written_after_the_session_closed(how):
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


async def test_f34b_closing_under_a_running_turn_ends_that_turn_first():
    log: list[str] = []
    session = agent(working(log))
    await session.initialize()
    session.coordinator.register_cleanup(lambda: log.append("cleanup"))

    async def run():
        with pytest.raises(ExecutionCancelled, match="its session was closed"):
            await session.execute("go")

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.sleep(1.5)
        await session.cleanup()
    assert log == ["turn left", "cleanup"]


# ── F35–F37: how a turn ends ─────────────────────────────────────────────────────────────────────


def ending_with(outcome):
    async def body(turn):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return body


async def test_f35_typed_error_crosses_the_kernel_unchanged():
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


async def test_f36_exception_group_passes_and_can_be_taken_apart():
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


async def test_f36_error_out_of_the_block_is_not_wrapped_in_a_group():
    with pytest.raises(LookupError, match="plain"):
        async with agent():
            raise LookupError("plain")


@pytest.mark.parametrize("outcome", [None, b"bytes", 7, ["text"], "lone \ud800 surrogate"])
async def test_f37_turn_without_text_is_a_broken_contract(outcome):
    async with agent(ending_with(outcome)) as session:
        with pytest.raises(ContractError, match="orchestrator Loop returned") as caught:
            await session.execute("go")
        assert caught.value.module == "Loop"
        assert session.status.status == "failed"
        with pytest.raises(TypeError, match="prompt must be a str"):
            await session.execute(b"bytes")  # type: ignore[arg-type]
