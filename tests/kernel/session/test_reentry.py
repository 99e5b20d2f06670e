"""Calls into a session from places that wait for it, and closing when something else has failed."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import anyio
import pytest

from amplifier import ExecutionCancelled, HookResult, SessionStateError
from amplifier.kernel.runtime.child import run_in_child
from tests._support.small_agent import agent
from tests.kernel.backends_alone import loop_turns, on_asyncio


@pytest.mark.parametrize("where", ["cleanup", "session:end"])
async def test_nested_closing_is_refused(where):
    refused: list[str] = []

    async def close(*_: object) -> None:
        with pytest.raises(SessionStateError, match="inside its own closing"):
            await session.cleanup()
        refused.append(where)

    session = agent()
    with anyio.fail_after(60):
        async with session:
            if where == "cleanup":
                session.coordinator.register_cleanup(close)
            else:
                session.coordinator.hooks.register("session:end", close)
    assert (refused, session.statistics().state) == ([where], "closed")


async def test_cancel_callback_cannot_wait_for_closing():
    session = agent()
    with anyio.fail_after(60):
        async with session:
            session.coordinator.cancellation.on_cancel(session.cleanup)
            session.coordinator.request_cancel()
            await anyio.lowlevel.checkpoint()
    assert session.statistics().state == "closed"


async def test_text_closed_by_handler_of_its_turn():
    async def body(turn):
        await turn.hooks.emit("custom:event", {})
        return "done"

    async with agent(body) as session:
        pieces = session.stream_text("go")

        async def close(event, data):
            await pieces.aclose()

        session.coordinator.hooks.register("custom:event", close)
        with anyio.fail_after(60):
            assert [piece async for piece in pieces] == []


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_text_closed_by_other_task_ends(is_waiting):
    async def body(turn):
        for text in ("one", "two"):
            await turn.hooks.emit("content_block:delta", {"block_type": "text", "delta": text})
        await anyio.sleep_forever()

    read: list[str] = []
    async with agent(body) as session, anyio.create_task_group() as group:
        pieces = session.stream_text("go")
        async for piece in pieces:
            read.append(piece)
            if is_waiting and piece == "two":
                group.start_soon(pieces.aclose)
            elif not is_waiting:
                await pieces.aclose()
    assert read == (["one", "two"] if is_waiting else ["one"])


async def test_earlier_turn_task_may_close_later():
    first_over = anyio.Event()

    async def body(turn):
        if turn.prompt == "first":
            group.start_soon(close, turn.coordinator.session)
            return "done"
        first_over.set()
        return await anyio.sleep(3600)

    async def close(session):
        await first_over.wait()
        await session.cleanup()

    session = agent(body)
    await session.initialize()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await session.execute("first")
            with pytest.raises(ExecutionCancelled, match="its session was closed"):
                await session.execute("second")
    assert session.statistics().state == "closed"


@pytest.mark.parametrize("when", ["before it is left", "after it was left"])
async def test_interrupt_in_abandoned_text_ends_session(when):
    reached = anyio.Event()

    async def body(turn):
        await turn.hooks.emit("content_block:delta", {"block_type": "text", "delta": "one"})
        try:
            if when == "after it was left":
                await anyio.sleep_forever()
        finally:
            reached.set()
            raise KeyboardInterrupt

    async def live():
        async with session:
            async for _ in session.stream_text("go"):
                if when == "before it is left":
                    await reached.wait()
                    await anyio.wait_all_tasks_blocked()
                break
            await anyio.sleep_forever()

    session = agent(body)
    with anyio.fail_after(10):
        with pytest.raises(KeyboardInterrupt):
            await live()
    assert session.statistics().state == "closed"


async def test_interrupt_in_stream_precedes_block_error():
    async def body(turn):
        raise KeyboardInterrupt

    async def fail_in_the_block():
        async with session.stream("go"):
            await anyio.wait_all_tasks_blocked()
            raise ValueError("in the block")

    async with agent(body) as session:
        with pytest.raises(KeyboardInterrupt):
            await fail_in_the_block()


@pytest.mark.parametrize("order", ["scope, native", "native, scope", "native, scope later"])
@on_asyncio
async def test_native_cancel_beside_scope_is_kept(order):
    """An error of the block leaves a stream before the cancellation of a scope, but not a native one."""

    async def body(turn):
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await loop_turns(5)

    async def call(session, scope):
        with scope:
            async with session.stream("go"):
                await loop_turns(5)
                asyncio.get_running_loop().call_soon(stop)
                raise ValueError("in the block")

    def stop():
        if order == "scope, native":
            scope.cancel()
        task.cancel()
        if order == "native, scope":
            scope.cancel()
        elif order == "native, scope later":
            asyncio.get_running_loop().call_later(0, scope.cancel)

    async with agent(body) as session:
        scope = anyio.CancelScope()
        task = asyncio.get_running_loop().create_task(call(session, scope))
        await asyncio.wait([task])
    assert task.cancelled()


async def test_shielded_emitter_ignores_departed_reader():
    emitting = anyio.Event()

    async def body(turn):
        with anyio.CancelScope(shield=True):
            for number in range(300):
                if number == 200:
                    emitting.set()
                await turn.hooks.emit("custom:event", {"number": number})
        return "done"

    async with agent(body) as session:
        with anyio.fail_after(60):
            async with session.stream("go"):
                await emitting.wait()
                await anyio.wait_all_tasks_blocked()
        assert not session.statistics().turn_running


async def test_left_hosted_manager_is_forgotten():
    @asynccontextmanager
    async def manager():
        yield

    async with agent() as session:
        before = session.statistics().cleanups
        for _ in range(3):
            leave = await session.coordinator.host(manager())
            await leave()
        assert session.statistics().cleanups == before


async def test_token_reset_from_thread_during_grace():
    async def body(turn):
        turn.coordinator.cancellation.request_graceful(60)
        await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(turn.coordinator.cancellation.reset)
        return "done"

    async with agent(body) as session:
        with anyio.fail_after(60):
            assert await session.execute("go") == "done"


def test_session_of_dead_loop_closes_elsewhere():
    begun = threading.Event()

    async def hang() -> None:
        begun.set()
        raise KeyboardInterrupt

    async def use() -> None:
        session.coordinator.register_cleanup(hang)
        await session.initialize()
        await session.cleanup()

    session = agent()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(use())
    asyncio.run(asyncio.wait_for(session.cleanup(), 60))
    assert (begun.is_set(), session.statistics().state) == (True, "closed")


async def test_unstartable_shielded_child_raises():
    async def work() -> None:
        """Not reached."""

    class Refusing:
        def start_soon(self, *args: object, **options: object) -> None:
            raise RuntimeError("no new tasks")

    def group() -> object:
        @asynccontextmanager
        async def refusing():
            yield Refusing()

        return refusing()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("amplifier.kernel.runtime.child.anyio.create_task_group", group)
        with pytest.raises(RuntimeError, match="no new tasks"):
            await run_in_child(work, name="work", shield=True)


class LateSystem:
    """An approval system that refuses after the time of the question."""

    async def request_approval(self, prompt, options, timeout, default):
        try:
            await anyio.sleep_forever()
        finally:
            return "Deny"  # noqa: B012 — it swallows its cancellation


@pytest.mark.virtual_time
async def test_late_refusal_precedes_default():
    question = HookResult(
        action="ask_user", approval_prompt="rm?", approval_timeout=1, approval_default="allow"
    )
    async with agent(approval_system=LateSystem()) as session:
        result = await session.coordinator.process_hook_result(question, "tool:pre", "gate")
    assert (result.action, result.reason) == ("deny", "User denied: rm?")


class FailingSystem:
    """An approval system whose error carries a secret."""

    async def request_approval(self, prompt, options, timeout, default):
        raise RuntimeError("401 for Authorization: Bearer abcdefghijklmnop1234567890")


async def test_failed_approval_shows_no_secret():
    question = HookResult(action="ask_user", approval_prompt="rm?")
    async with agent(approval_system=FailingSystem()) as session:
        result = await session.coordinator.process_hook_result(question, "tool:pre", "gate")
    assert result.action == "deny"
    assert "abcdefghijklmnop" not in (result.reason or "")


async def test_shielded_emitter_ignores_abandoned_text():
    emitting = anyio.Event()

    async def body(turn):
        with anyio.CancelScope(shield=True):
            for number in range(300):
                text = {"block_type": "text", "delta": str(number)}
                await turn.hooks.emit("content_block:delta", text)
                emitting.set()
        return "done"

    with anyio.fail_after(60):
        async with agent(body) as session:
            async for _ in session.stream_text("go"):
                await emitting.wait()
                await anyio.wait_all_tasks_blocked()
                break
    assert session.cleanup_failures == []
