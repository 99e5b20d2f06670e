"""Faults F20–F24: modules that hang, fail or are cancelled while a session opens."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from amplifier import ModuleLoadError
from amplifier.errors import DeadlineExceeded
from tests._support.small_agent import (
    Echo,
    Loop,
    Memory,
    agent,
    give_up_after,
    heard,
    mounting,
    repeat_prompt,
)

pytestmark = pytest.mark.virtual_time


async def hanging_mount(coordinator, config):
    await anyio.sleep_forever()


def hanging_ready():
    async def ready(coordinator):
        await anyio.sleep_forever()

    return SimpleNamespace(mount=mounting(Echo()), on_session_ready=ready)


# ── F20, F21: deadlines ──────────────────────────────────────────────────────────────────────────


async def test_f20_hanging_ready_callback_is_cut_short(caplog):
    """It is not fatal, as in the seeds: the module stays mounted, the failure is recorded, announced and logged."""
    reached = []

    async def next_ready(coordinator):
        reached.append("next module")

    session = agent(
        tools={
            "tool-slow": hanging_ready(),
            "tool-next": SimpleNamespace(mount=mounting(Echo("next")), on_session_ready=next_ready),
        }
    )
    events = heard(session, "module:on_session_ready_failed")
    began = anyio.current_time()
    async with session:
        assert anyio.current_time() - began == pytest.approx(60)
        [failure] = session.failures
        assert (failure.module_id, failure.phase) == ("tool-slow", "ready")
        assert isinstance(failure.error, DeadlineExceeded)
        assert failure.error.module == "tool-slow"
        assert failure.error.seconds == pytest.approx(60)
        assert [data["module_id"] for _, data in events] == ["tool-slow"]
        assert reached == ["next module"]
        assert await session.execute("hi") == "hi"
    assert "'tool-slow'" in caplog.text


async def test_f20_hanging_ready_callback_in_strict_mode():
    closed = []
    session = agent(
        context=mounting(Memory(), lambda: closed.append("context")),
        tools={"tool-slow": hanging_ready()},
        session={"strict": True, "deadlines": {"ready": 3}},
    )
    with pytest.raises(DeadlineExceeded, match="'tool-slow'"):
        async with session:
            pytest.fail("the session opened")
    assert closed == ["context"]


async def test_f21_hanging_mount_is_undone(caplog):
    left = []

    async def mount(coordinator, config):
        await coordinator.mount("tools", Echo("half"))
        try:
            await anyio.sleep_forever()
        finally:
            left.append("mount left")

    session = agent(tools={"tool-slow": mount, "tool-good": mounting(Echo("good"))})
    events = heard(session, "module:load_failed")
    began = anyio.current_time()
    async with session:
        assert anyio.current_time() - began == pytest.approx(120)
        assert left == ["mount left"]
        assert list(session.coordinator.get("tools")) == ["good"]
        [failure] = session.failures
        assert (failure.module_id, failure.reason_code) == ("tool-slow", "deadline")
        assert [(data["module_id"], data["reason_code"]) for _, data in events] == [
            ("tool-slow", "deadline")
        ]
    assert "120 s" in caplog.text


@pytest.mark.parametrize("role", ["orchestrator", "context"])
async def test_f21_hanging_required_mount_ends_opening(role):
    modules: dict[str, Any] = {role: hanging_mount}
    with pytest.raises(ModuleLoadError, match="no answer within 7 s") as caught:
        async with agent(**modules, session={"deadlines": {"mount": 7}}):
            pytest.fail("the session opened")
    assert caught.value.reason_code == "deadline"
    assert isinstance(caught.value.__cause__, DeadlineExceeded)


# ── F22, F23: what was mounted is cleaned up ─────────────────────────────────────────────────────


def logged(log, name, instance):
    """A module whose cleanup takes its time."""

    async def cleanup():
        await anyio.sleep(1)
        log.append(f"{name} closed")

    return mounting(instance, cleanup)


@pytest.mark.parametrize("how", ["scope", "native"])
@pytest.mark.parametrize("opened", ["async with", "initialize"])
async def test_f22_cancelled_opening_cleans_up_in_reverse(how, opened):
    log = []

    async def third(coordinator, config):
        try:
            await anyio.sleep_forever()
        finally:
            log.append("third left")

    session = agent(
        orchestrator=logged(log, "first", Loop(repeat_prompt)),
        context=logged(log, "second", Memory()),
        tools={"tool-third": third, "tool-fourth": logged(log, "fourth", Echo())},
    )

    async def open_it():
        if opened == "initialize":
            await session.initialize()
        else:
            await session.__aenter__()
        log.append("opened")

    await give_up_after(1, how, open_it)
    log.append("caller left")
    await anyio.sleep(1000)
    assert log == ["third left", "second closed", "first closed", "caller left"]
    assert session.statistics().state == "closed"
    assert session.statistics().handlers == 0
    assert session.failures == []  # a real cancellation is never a module's failure


@pytest.mark.parametrize("opened", ["async with", "initialize"])
async def test_f23_failed_required_module_keeps_cause(opened):
    """The other modules are cleaned up."""
    log = []
    original = KeyError("no such database")

    async def broken(coordinator, config):
        coordinator.register_cleanup(lambda: log.append("context closed"))
        raise original

    session = agent(orchestrator=logged(log, "orchestrator", Loop(repeat_prompt)), context=broken)
    with pytest.raises(ModuleLoadError, match="'context-small'") as caught:
        await (session.initialize() if opened == "initialize" else session.__aenter__())
    assert caught.value.__cause__ is original
    assert caught.value.module_id == "context-small"
    assert log == ["context closed", "orchestrator closed"]


# ── F24: a mount's own cancellation or exit ──────────────────────────────────────────────────────


def raising(exception, form):
    async def later(coordinator, config):
        raise exception

    def at_once(coordinator, config):
        raise exception

    @asynccontextmanager
    async def structured(coordinator, config):
        raise exception
        yield

    return {"async": later, "sync": at_once, "structured": structured}[form]


@pytest.mark.parametrize("form", ["async", "sync", "structured"])
@pytest.mark.parametrize(
    "exception", [asyncio.CancelledError("bad"), SystemExit(3)], ids=["cancelled", "exit"]
)
async def test_f24_invented_exit_is_module_failure(exception, form):
    tools = {"tool-bad": raising(exception, form), "tool-good": mounting(Echo("good"))}
    async with agent(tools=tools) as session:
        [failure] = session.failures
        assert failure.module_id == "tool-bad"
        assert isinstance(failure.error, ModuleLoadError)
        assert list(session.coordinator.get("tools")) == ["good"]
        assert await session.execute("hi") == "hi"


@pytest.mark.parametrize(
    "exception", [asyncio.CancelledError("bad"), SystemExit(3)], ids=["cancelled", "exit"]
)
async def test_f24_invented_exit_of_required_module(exception):
    with pytest.raises(ModuleLoadError, match="'context-small'"):
        async with agent(context=raising(exception, "async")):
            pytest.fail("the session opened")


async def test_f24_interrupt_in_mount_closes_everything():
    closed = []
    session = agent(
        context=mounting(Memory(), lambda: closed.append("context")),
        tools={"tool-bad": raising(KeyboardInterrupt(), "async")},
    )
    with pytest.raises(KeyboardInterrupt):
        async with session:
            pytest.fail("the session opened")
    assert closed == ["context"]
