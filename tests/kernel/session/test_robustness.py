"""What an attack on the kernel found: late requests, errors that cannot be shown, closings that wait for themselves."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.errors import SessionStateError
from tests._support.child_process import run_child
from tests._support.small_agent import agent, heard

pytestmark = pytest.mark.virtual_time


class Unshowable(Exception):
    """An error whose own text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnshowablePanic(BaseException):
    """The same, and no Exception."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_stop_request_during_closing_is_harmless():
    session = agent()
    ran: list[str] = []

    async def observe(event: str, data: Any) -> None:
        session.coordinator.request_cancel(immediate=True)
        await anyio.sleep(0.1)
        ran.append("observed")

    def fail() -> None:
        raise ValueError("broke")

    session.coordinator.hooks.register("cleanup:failed", observe)
    async with session:
        session.coordinator.register_cleanup(fail)
    assert ran == ["observed"]
    session.coordinator.request_cancel(immediate=True)
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("error", [Unshowable(), UnshowablePanic()], ids=["error", "panic"])
async def test_unprintable_error_stops_nothing(error):
    ran: list[str] = []

    def fail(*_: Any) -> None:
        raise error

    async def crash() -> None:
        raise error

    session = agent()
    async with session:
        coordinator = session.coordinator
        coordinator.hooks.register("x", fail)
        coordinator.hooks.register("x", lambda event, data: ran.append("neighbour"))
        await coordinator.hooks.emit("x", {})
        coordinator.start_soon(crash)
        await anyio.sleep(0.1)
        coordinator.register_cleanup(lambda: ran.append("first"))
        coordinator.register_cleanup(fail)
        assert await session.execute("still here") == "still here"
    assert ran == ["neighbour", "first"]
    [failure] = session.cleanup_failures
    assert "its text cannot be shown: RuntimeError" in str(failure)


async def test_structured_module_cannot_close_own_session():
    refused: list[BaseException] = []

    @asynccontextmanager
    async def mount(coordinator: Any, config: Any) -> Any:
        yield
        try:
            await coordinator.session.cleanup()
        except SessionStateError as exc:
            refused.append(exc)

    with anyio.fail_after(60):
        async with agent(tools={"tool-a": mount}) as session:
            pass
    assert "from inside its own structured module" in str(refused[0])
    assert session.cleanup_failures == []


async def test_cleanups_registering_cleanups_are_bounded():
    session = agent(session={"deadlines": {"teardown": 2, "cleanup": 1}})

    async def again() -> None:
        session.coordinator.register_cleanup(again)
        await anyio.sleep(0.3)

    async with session:
        session.coordinator.register_cleanup(again)
        began = anyio.current_time()
    assert anyio.current_time() - began <= 2.5
    assert session.cleanup_failures
    assert session.statistics().state == "closed"


async def test_block_waits_for_closing_in_other_task():
    session = agent()
    released, closed = anyio.Event(), []

    async def slow() -> None:
        await released.wait()
        closed.append("closed")

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with session:
                session.coordinator.register_cleanup(slow)
                group.start_soon(session.cleanup)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(_cancel_then_release, scope, released)
        assert closed == ["closed"]
        assert session.statistics().state == "closed"


async def _cancel_then_release(scope: anyio.CancelScope, released: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()
    await anyio.wait_all_tasks_blocked()
    released.set()


async def test_uncancellable_closing_observer_is_reported():
    session = agent(session={"deadlines": {"teardown": 1, "cleanup": 1}})
    events = heard(session, "module:unresponsive")

    async def refuse(event: str, data: Any) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(10)

    def fail() -> None:
        raise ValueError("broke")

    session.coordinator.hooks.register("cleanup:failed", refuse)
    async with session:
        session.coordinator.register_cleanup(fail)
    assert session.statistics().state == "closed"
    assert [event for event, _ in events] == []  # there is no one left who could listen


FORGOTTEN = """
import asyncio, contextlib

async def work():
    try:
        await anyio.sleep_forever()
    finally:
        print_line("work ended")

async def main():
    session = agent(session={"deadlines": {"teardown": 0.3}})
    stack = contextlib.AsyncExitStack()
    await stack.enter_async_context(session)
    session.coordinator.start_soon(work)
    await anyio.sleep(0.05)
    globals()["kept"] = stack, session  # never closed

asyncio.run(main())
print_line("over")
"""


def test_loop_end_bounds_unclosed_session():
    ended = run_child(FORGOTTEN, "asyncio")
    assert ended.lines == ["work ended", "over"], ended.errors


INTERRUPTING_CALLBACK = """
async def main():
    def interrupt():
        raise KeyboardInterrupt

    async def body(turn):
        turn.coordinator.cancellation.request_graceful()
        await anyio.sleep(0.1)
        return "done"

    session = agent(body)
    session.coordinator.cancellation.on_cancel(interrupt)
    try:
        async with session:
            await session.execute("go")
    finally:
        print_line(repr(session).split()[-1])

try:
    run_natively(main)
except KeyboardInterrupt:
    print_line("interrupted")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_in_cancel_callback_closes_session(backend):
    ended = run_child(INTERRUPTING_CALLBACK, backend)
    assert ended.lines == ["closed>", "interrupted"], ended.errors
