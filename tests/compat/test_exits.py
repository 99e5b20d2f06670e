"""What modules raise that is no Exception: which of it leaves an alias session, on both backends.

`differential/test_exits.py` compares all places with the published kernel; these are the rules of our own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio.lowlevel
import pytest

from amplifier.compat._sessions.coordinator import ModuleCoordinator
from amplifier.compat._sessions.hooks import HookRegistry

from .test_sessions import session_of

pytestmark = pytest.mark.usefixtures("alias")

FORMS = ["sync", "async"]


class Odd(BaseException):
    """Neither an Exception nor one of Python's own."""


def raising(error: BaseException, form: str) -> Callable[..., Any]:
    def at_once(*_: Any) -> Any:
        raise error

    async def later(*_: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        raise error

    return at_once if form == "sync" else later


def coordinator() -> ModuleCoordinator:
    return ModuleCoordinator(SimpleNamespace(session_id="s", parent_id=None, config={}))


async def test_an_exit_leaves_an_async_handler_and_is_a_failure_of_a_sync_one():
    hooks = HookRegistry()
    unregister = hooks.register("e", raising(SystemExit(3), "async"))
    with pytest.raises(SystemExit) as caught:
        await hooks.emit("e", {})
    with pytest.raises(SystemExit):
        await hooks.emit_and_collect("e", {})
    unregister()
    hooks.register("e", raising(SystemExit(3), "sync"))

    assert caught.value.code == 3
    assert (await hooks.emit("e", {})).action == "continue"
    assert await hooks.emit_and_collect("e", {}) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [Odd("x"), asyncio.CancelledError("x")])
async def test_other_exceptions_of_a_handler_are_its_failure(error: BaseException, form: str):
    hooks = HookRegistry()
    hooks.register("e", raising(error, form))
    assert (await hooks.emit("e", {})).action == "continue"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [Odd("x"), SystemExit(1)])
async def test_exceptions_of_contributors_contexts_and_approval_systems_propagate(error: BaseException, form: str):
    from amplifier import HookResult

    made = coordinator()
    made.register_contributor("channel", "name", raising(error, form))
    made.mount_points["context"] = SimpleNamespace(add_message=raising(error, form))
    made.approval_system = SimpleNamespace(request_approval=raising(error, form))

    for call in (
        lambda: made.collect_contributions("channel"),
        lambda: made.process_hook_result(HookResult(action="inject_context", context_injection="x"), "e"),
        lambda: made.process_hook_result(HookResult(action="ask_user"), "e"),
    ):
        with pytest.raises(type(error)):
            await call()


@pytest.mark.parametrize("form", FORMS)
async def test_a_cancellation_that_a_cleanup_raises_by_itself_is_its_failure(
    form: str, caplog: pytest.LogCaptureFixture
):
    ran: list[str] = []
    made = coordinator()
    for step in (lambda: ran.append("last"), raising(asyncio.CancelledError(), form), lambda: ran.append("first")):
        made.register_cleanup(step)

    with caplog.at_level(logging.ERROR):
        await made.cleanup()

    assert ran == ["first", "last"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "raised CancelledError although nothing was cancelled" in line
    assert "raising.<locals>" in line  # which cleanup it was


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [SystemExit(2), Odd("x")])
async def test_an_exit_of_a_cleanup_is_raised_when_all_have_run(error: BaseException, form: str):
    ran: list[str] = []
    made = coordinator()
    made.register_cleanup(lambda: ran.append("last"))
    made.register_cleanup(raising(error, form))

    with pytest.raises(type(error)):
        await made.cleanup()
    assert ran == ["last"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_session_raises_the_exit_of_a_cleanup_and_contains_other_failures(form: str):
    session = session_of()
    await session.initialize()
    session.coordinator.register_cleanup(raising(Odd("x"), form))
    await session.cleanup()

    session = session_of()
    await session.initialize()
    session.coordinator.register_cleanup(raising(SystemExit(2), form))
    with pytest.raises(SystemExit):
        await session.cleanup()
    assert not session.initialized


async def test_an_exit_of_a_handler_of_the_end_leaves_when_everything_is_closed():
    session = session_of()
    session.coordinator.hooks.register("session:end", raising(SystemExit(2), "async"))

    with pytest.raises(SystemExit):
        async with session:
            pass

    assert not session.initialized
    assert session.coordinator.loader.cleaned == ["provider-p", "context", "loop"]


async def test_a_turn_and_an_opening_wrap_what_is_neither_exit_nor_cancellation():
    async def act(**_: Any) -> str:
        raise Odd("planned")

    async with session_of(act) as session:
        with pytest.raises(RuntimeError, match=r"^Execution failed: Odd: planned$") as caught:
            await session.execute("x")
    assert isinstance(caught.value.__cause__, Odd)


async def test_an_exit_of_the_loop_reaches_the_caller():
    async def act(**_: Any) -> str:
        raise SystemExit(4)

    async with session_of(act) as session:
        with pytest.raises(SystemExit) as caught:
            await session.execute("x")
    assert caught.value.__cause__ is None
