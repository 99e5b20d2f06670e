"""The session: its states, one writer, closing from anywhere, children, and that nothing is shared or left behind."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import (
    AmplifierSession,
    ExecutionCancelled,
    PlanError,
    SessionStateError,
)
from tests._support.small_agent import Echo, Loop, Memory, agent, heard, mounting, repeat_prompt

pytestmark = pytest.mark.virtual_time


def unwinding(log, seconds=2):
    async def body(turn):
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(seconds)
            log.append("unwound")

    return body


def closing_hook(log, name="closed", seconds=0.0):
    async def mount(coordinator, config):
        log.append("mounted")

        async def cleanup():
            await anyio.sleep(seconds)
            log.append(name)

        return cleanup

    return mount


# ── making one ───────────────────────────────────────────────────────────────────────────────────


async def test_repr_and_statistics_over_session_life():
    seen: list[object] = []

    async def body(turn):
        seen.append(repr(session))
        seen.append(session.statistics().turn_running)
        return "done"

    session = agent(body, hooks={"hooks-a": closing_hook([])}, session_id="s")
    assert repr(session) == "<AmplifierSession 's' new>"
    async with session:
        assert repr(session) == "<AmplifierSession 's' open>"
        session.coordinator.hooks.register("e", lambda event, data: None)
        await session.execute("hi")
        now = session.statistics()
        assert (now.state, now.turn_running, now.cleanups, now.handlers, now.failures) == (
            "open",
            False,
            1,
            1,
            0,
        )
    assert seen == ["<AmplifierSession 's' open, turn running>", True]
    assert repr(session) == "<AmplifierSession 's' closed>"
    assert session.statistics().cleanups == 0
    assert session.status.ended_at is not None


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


async def test_reopened_session_still_explains_missing_background():
    session = agent()
    for _ in range(2):
        await session.initialize()
        with pytest.raises(SessionStateError, match="open it with `async with` instead"):
            session.coordinator.start_soon(anyio.sleep, 1)
        await session.cleanup()
    with pytest.raises(SessionStateError, match="the session is closed"):
        session.coordinator.start_soon(anyio.sleep, 1)
    async with session:
        session.coordinator.start_soon(anyio.sleep, 1)


async def test_failed_opening_can_be_retried(log):
    broken = [True]

    async def mount(coordinator, config):
        coordinator.register_cleanup(lambda: log.append("cleaned up"))
        if broken[0]:
            raise OSError("not yet")
        return Memory()

    session = agent(context=mount)
    with pytest.raises(Exception, match="not yet"):
        await session.initialize()
    assert (session.statistics().state, session.status.status, log) == (
        "closed",
        "failed",
        ["cleaned up"],
    )
    broken[0] = False
    async with session:
        assert await session.execute("hi") == "hi"
    assert session.failures == []


# ── closing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_session_end_reports_last_turn_status(status):
    async def body(turn):
        if status == "failed":
            raise ValueError("broke")
        if status == "cancelled":
            turn.coordinator.request_cancel()
        return "done"

    session = agent(body)
    events = heard(session, "session:end")
    async with session:
        with suppress(ValueError):
            await session.execute("hi")
    assert events[0][1]["status"] == status


async def test_closing_waits_for_opening(log):
    async def mount(coordinator, config):
        await anyio.sleep(2)
        return lambda: log.append("cleaned up")

    session = agent(hooks={"hooks-a": mount})
    async with anyio.create_task_group() as group:
        group.start_soon(session.initialize)
        await anyio.sleep(1)
        await session.cleanup()
        assert session.statistics().state == "closed"
    assert log == ["cleaned up"]


@pytest.mark.parametrize("event", ["session:end", "cleanup:failed"])
async def test_interrupt_in_session_end_follows_cleanup(event, log):
    error = KeyboardInterrupt()

    def fail():
        raise ValueError("a cleanup broke")

    def interrupt(event, data):
        raise error

    session = agent(hooks={"hooks-a": closing_hook(log)})
    session.coordinator.hooks.register(event, interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        async with session:
            session.coordinator.register_cleanup(fail)
    assert caught.value is error
    assert log == ["mounted", "closed"]
    assert session.statistics().state == "closed"
    assert len(session.cleanup_failures) == 1


async def test_leftover_turn_task_may_close_session():
    async def body(turn):
        group.start_soon(close_later, turn.coordinator.session)
        return "done"

    async def close_later(session):
        await anyio.sleep(1)
        await session.cleanup()

    session = agent(body)
    await session.initialize()
    async with anyio.create_task_group() as group:
        await session.execute("hi")
    assert session.statistics().state == "closed"


async def test_endless_turn_takes_half_of_closing(log, caplog):
    session = agent(unwinding(log, seconds=70), hooks={"hooks-a": closing_hook(log)})
    await session.initialize()

    async def execute():
        with pytest.raises(ExecutionCancelled):
            await session.execute("hi")

    async with anyio.create_task_group() as group:
        group.start_soon(execute)
        await anyio.sleep(1)
        began = anyio.current_time()
        await session.cleanup()
        assert anyio.current_time() - began == pytest.approx(15, abs=1)
    assert log == ["mounted", "closed", "unwound"]
    [failure] = session.cleanup_failures
    assert str(failure) == "turn of the application: no answer within 15 s"
    assert caplog.text.count("does not end although it was cancelled") == 1


@pytest.mark.parametrize("error", [OSError("stuck"), SystemExit("stuck")], ids=repr)
async def test_failing_loader_cleanup_is_logged(caplog, error):
    class Loader:
        def load(self, module_id, config=None, source_hint=None):
            return lambda coordinator: Loop(repeat_prompt) if module_id == "loop-a" else Memory()

        def cleanup(self):
            raise error

    async with AmplifierSession(
        {"session": {"orchestrator": "loop-a", "context": "context-a"}}, Loader()
    ) as session:
        assert await session.execute("hi") == "hi"
    assert session.statistics().state == "closed"
    assert "failed to clean up" in caplog.text


# ── children ─────────────────────────────────────────────────────────────────────────────────────


async def test_child_plan_is_overlaid_copy():
    parent = agent(
        tools={"tool-echo": mounting(Echo())},
        session={"metadata": {"a": 1, "b": 2}},
        session_id="p",
    )
    child = parent.fork({"session": {"metadata": {"b": 3}}, "hooks": []}, session_id="c")
    assert (child.session_id, child.parent_id, child.initialized) == ("c", "p", False)
    assert child.config["session"]["metadata"] == {"a": 1, "b": 3}
    assert parent.config["session"]["metadata"] == {"a": 1, "b": 2}
    assert child.config["tools"] == parent.config["tools"]
    assert child.config["tools"] is not parent.config["tools"]
    events = heard(child, "session:fork")
    async with parent, child:
        assert await child.execute("hi") == "hi"
        assert child.coordinator is not parent.coordinator
        assert child.coordinator.hooks is not parent.coordinator.hooks
    assert events[0][1]["parent"] == "p"


@pytest.mark.parametrize(
    "overlay", [5, "x", [], [("session", {})], {"session": {"context": None}}, {"tools": 5}]
)
def test_invalid_overlay_is_refused(overlay):
    with pytest.raises(PlanError):
        agent().fork(overlay)


async def test_child_inherits_deadlines_systems_loader_and_resolver():
    approval, display = object(), object()
    resolver: Any = object()
    parent = agent(
        session={"deadlines": {"hook": 7, "turn": 9}},
        approval_system=approval,
        display_system=display,
    )
    parent.loader.register("tool-extra", mounting(Echo()))
    async with parent:
        await parent.coordinator.mount("module-source-resolver", resolver)
        child = parent.fork({"session": {"deadlines": {"turn": 5}}, "tools": ["tool-extra"]})
        assert child.coordinator.get("module-source-resolver") is resolver
        assert child.coordinator.loader is child.loader is not parent.loader
        assert child.coordinator.approval_system is approval
        assert child.coordinator.display_system is display
        await child.coordinator.unmount("module-source-resolver")
        async with child:
            assert (child.coordinator.deadlines.hook, child.coordinator.deadlines.turn) == (7, 5)
            assert list(child.coordinator.get("tools")) == ["echo"]


async def test_child_deadlines_default_to_parents():
    overlay = {"session": {"deadlines": None}}
    async with agent(session={"deadlines": {"hook": 7}}) as parent, parent.fork(overlay) as child:
        assert child.coordinator.deadlines == parent.coordinator.deadlines
        assert child.coordinator.deadlines.hook == 7


async def test_child_shares_foreign_loader():
    loader: Any = object()
    parent = AmplifierSession(
        {"session": {"orchestrator": "loop-a", "context": "context-a"}}, loader
    )
    assert parent.fork().loader is loader


@pytest.mark.parametrize("immediate", [True, False])
async def test_parent_stop_reaches_open_child_only(immediate):
    parent = agent()
    async with parent:
        unopened, first, second = parent.fork(), parent.fork(), parent.fork()
        async with first, second:
            first.coordinator.request_cancel(immediate=immediate)
            assert not parent.coordinator.cancellation.is_cancelled
            assert not second.coordinator.cancellation.is_cancelled
            parent.coordinator.request_cancel(immediate=immediate)
            assert second.coordinator.cancellation.is_cancelled
        assert not unopened.coordinator.cancellation.is_cancelled
        parent.coordinator.cancellation.reset()
        second.coordinator.cancellation.reset()
        parent.coordinator.request_cancel(immediate=immediate)
        assert not second.coordinator.cancellation.is_cancelled
