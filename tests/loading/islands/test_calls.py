"""Calls between trio and an asyncio island: errors, cancellation, context variables, threads. On asyncio there is no island,
and every test holds there as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.contracts import current_call
from amplifier.errors import (
    ContainedError,
    ExecutionCancelled,
    SessionStateError,
    SpuriousCancellation,
)
from amplifier.models import ToolResult

from ._modules import agent, asyncio_only, result_of, tool_module

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Broken(Exception):
    """An error of the module."""


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


async def test_error_keeps_type_cause_and_traceback():
    async def deep() -> None:
        await asyncio.sleep(0)
        try:
            raise KeyError("first")
        except KeyError as exc:
            raise Broken("second") from exc

    async def work(given: Any) -> None:
        await deep()

    with pytest.raises(Broken, match="second") as caught:
        await result_of(work)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "deep" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


async def test_trio_error_reaches_island_intact():
    seen: list[Any] = []

    async def fails(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        raise Broken(number) from KeyError("first")

    async def work(given: Any, coordinator: Any) -> None:
        try:
            await coordinator.get_capability("fails")(7)
        except Broken as exc:
            names = [frame.name for frame in traceback.extract_tb(exc.__traceback__)]
            seen.append((exc.args, type(exc.__cause__), "fails" in names))

    await result_of(work, fails=fails)
    assert seen == [((7,), KeyError, True)]


async def test_unrequested_cancellation_is_module_failure(
    anyio_backend_name: str,
):
    async def work(given: Any) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with agent(tool=tool_module(work), turns=[("work", {}), "done"]) as session:
        errors: list[str] = []
        session.coordinator.hooks.register(
            "tool:error", lambda event, data: errors.append(str(data["error"]))
        )
        assert await session.execute("go") == "done"
        if anyio_backend_name == "trio":
            with pytest.raises(SpuriousCancellation) as caught:
                await session.coordinator.get("tools")["work"].execute({})
            assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert len(errors) == 1
    assert "CancelledError although nothing was cancelled" in errors[0]


async def test_sys_exit_in_loop_is_contained():
    class Loop:
        turns = 0

        async def execute(self, prompt: str, **kwargs: Any) -> str:
            self.turns += 1
            await asyncio.sleep(0)
            if self.turns == 1:
                raise SystemExit(3)
            return "second"

    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("orchestrator", Loop())

    async with agent(loop=asyncio_only(mount)) as session:
        with pytest.raises(ContainedError, match="SystemExit"):
            await session.execute("one")
        assert await session.execute("two") == "second"


async def test_keyboard_interrupt_propagates_and_closes_session():
    async def work(given: Any) -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    closed: list[str] = []
    async with agent(tool=tool_module(work)) as session:
        session.coordinator.register_cleanup(lambda: closed.append("closed"))
        with pytest.raises(KeyboardInterrupt):
            await session.coordinator.get("tools")["work"].execute({})
    assert closed == ["closed"]


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


async def test_cancelled_call_ends_on_island_first():
    steps: list[str] = []
    began = anyio.Event()

    async def work(given: Any, coordinator: Any) -> None:
        try:
            coordinator.get_capability("began")()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise
        finally:
            steps.append("unwound")

    session = agent(tool=tool_module(work))
    session.coordinator.register_capability("began", began.set)
    async with session, anyio.create_task_group() as group:
        group.start_soon(session.coordinator.get("tools")["work"].execute, {})
        await began.wait()
        group.cancel_scope.cancel()
    assert steps == ["cancelled", "unwound"]


async def test_immediate_stop_reaches_tool_on_island():
    steps: list[str] = []
    began = anyio.Event()

    class Loop:
        async def execute(self, prompt: str, tools: Any, hooks: Any, **kwargs: Any) -> str:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(tools["work"].execute({}))
                    group.create_task(asyncio.sleep(3600))
            finally:
                await hooks.emit("execution:end", {"status": "cancelled"})
            return "never"

    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("orchestrator", Loop())

    async def mount_tool(coordinator: Any, config: Any) -> None:
        class Tool:
            name = "work"
            description = "Waits on the session's own loop."

            async def execute(self, input: Any) -> ToolResult:  # noqa: A002  # the contract's name
                began.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    steps.append("tool unwound")
                return ToolResult(success=True)

        await coordinator.mount("tools", Tool())

    session = agent(loop=asyncio_only(mount), tool=mount_tool)
    session.coordinator.hooks.register(
        "execution:end", lambda event, data: steps.append(data["status"])
    )
    async with session, anyio.create_task_group() as group:

        async def stop() -> None:
            await began.wait()
            session.coordinator.cancellation.request_immediate()

        group.start_soon(stop)
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")
    assert steps == ["tool unwound", "cancelled"]


@pytest.mark.parametrize("way", ["timeout", "wait_for", "task", "scope"])
async def test_island_cancels_trio_call_and_waits(way: str):
    steps: list[str] = []

    async def wait() -> None:
        steps.append("waiting")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            steps.append("unwound")

    async def work(given: Any, coordinator: Any) -> str:
        call = coordinator.get_capability("wait")
        try:
            if way == "timeout":
                async with asyncio.timeout(0.01):
                    await call()
            elif way == "wait_for":
                await asyncio.wait_for(call(), 0.01)
            elif way == "scope":
                with anyio.fail_after(0.01):
                    await call()
            else:
                started = asyncio.create_task(call())
                while not steps:  # noqa: ASYNC110 — until the other side has begun
                    await asyncio.sleep(0)
                started.cancel()
                await started
        except (TimeoutError, asyncio.CancelledError) as exc:
            steps.append(type(exc).__name__)
        task = asyncio.current_task()
        assert task is not None
        return f"{task.cancelling()}"

    assert await result_of(work, wait=wait) == "0"
    assert steps == ["waiting", "unwound", "CancelledError" if way == "task" else "TimeoutError"]


@pytest.mark.parametrize("depth", [1, 2, 5, 20])
async def test_nested_calls_end_with_outermost(depth: int):
    began = anyio.Event()
    unwound: list[int] = []

    async def descend(coordinator: Any, level: int) -> None:
        try:
            if level == 0:
                coordinator.get_capability("began")()
                await anyio.sleep_forever()
            await coordinator.get_capability("there" if level % 2 else "back")(level - 1)
        finally:
            unwound.append(level)

    async def mount(coordinator: Any, config: Any) -> None:
        async def there(level: int) -> None:
            await descend(coordinator, level)

        coordinator.register_capability("there", there)

    session = agent(tool=asyncio_only(mount))

    async def back(level: int) -> None:
        await descend(session.coordinator, level)

    session.coordinator.register_capability("back", back)
    session.coordinator.register_capability("began", began.set)
    async with session, anyio.create_task_group() as group:
        group.start_soon(session.coordinator.get_capability("there"), depth)
        await began.wait()
        group.cancel_scope.cancel()
    assert unwound == list(range(depth + 1))


@pytest.mark.virtual_time
async def test_overrunning_handler_is_interrupted(caplog: pytest.LogCaptureFixture):
    steps: list[str] = []

    async def mount(coordinator: Any, config: Any) -> None:
        async def hang(event: str, data: Any) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                steps.append("cut off")

        coordinator.hooks.register("own:event", hang, name="hang", timeout=0.05)

    async with agent(hooks=asyncio_only(mount)) as session:
        result = await session.coordinator.hooks.emit("own:event", {})
    assert (result.action, steps) == ("continue", ["cut off"])
    assert "'hang'" in caplog.text


@pytest.mark.virtual_time
async def test_waiting_island_keeps_virtual_time_moving():
    async def work(given: Any, coordinator: Any) -> None:
        await coordinator.get_capability("an_hour")()

    began = anyio.current_time()
    with anyio.fail_after(7200):
        await result_of(work, an_hour=lambda: anyio.sleep(3600))
    assert 3600 <= anyio.current_time() - began < 3700


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


def numbers_module(made: list[int], closed: list[str]) -> Any:
    async def mount(coordinator: Any, config: Any) -> None:
        class Numbers:
            name = "numbers"

            async def stream(self) -> AsyncIterator[int]:
                try:
                    async with asyncio.timeout(60):
                        for number in range(100):
                            made.append(number)
                            await asyncio.sleep(0)
                            yield number
                finally:
                    closed.append("closed")

            def returned(self) -> AsyncIterator[int]:
                return self.stream()

        await coordinator.mount("tools", Numbers())

    return asyncio_only(mount)


@pytest.mark.parametrize("way", ["stream", "returned"])
async def test_stream_is_read_on_demand_and_closed(way: str):
    made: list[int] = []
    closed: list[str] = []
    async with agent(tool=numbers_module(made, closed)) as session:
        tools: Any = session.coordinator.get("tools")
        stream = getattr(tools["numbers"], way)()
        async with aclosing(stream):
            assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
            await anyio.wait_all_tasks_blocked()
            assert made == [0, 1, 2]
        assert closed == ["closed"]


async def test_stream_error_is_raised_at_reader():
    async def mount(coordinator: Any, config: Any) -> None:
        async def stream() -> AsyncIterator[int]:
            await asyncio.sleep(0)
            yield 1
            raise Broken("in the middle")

        coordinator.register_capability("stream", stream)

    async with agent(tool=asyncio_only(mount)) as session:
        stream = session.coordinator.get_capability("stream")()
        assert await anext(stream) == 1
        with pytest.raises(Broken, match="in the middle"):
            await anext(stream)


async def test_trio_stream_is_read_on_island():
    closed: list[str] = []

    async def stream() -> AsyncIterator[int]:
        try:
            with anyio.fail_after(60):
                for number in range(100):
                    await anyio.lowlevel.checkpoint()
                    yield number
        finally:
            closed.append("closed")

    async def work(given: Any, coordinator: Any) -> list[int]:
        async with aclosing(coordinator.get_capability("stream")()) as numbers:
            return [await anext(numbers), await anext(numbers)]

    assert await result_of(work, stream=stream) == [0, 1]
    assert closed == ["closed"]


async def test_block_error_reaches_exit_on_other_side():
    seen: list[Any] = []

    class Manager:
        async def __aenter__(self) -> None:
            await anyio.lowlevel.checkpoint()

        async def __aexit__(self, kind: Any, *details: Any) -> bool:
            await anyio.lowlevel.checkpoint()
            seen.append(kind)
            return kind is Broken

    async def work(given: Any, coordinator: Any) -> str:
        async with coordinator.get_capability("manager"):
            raise Broken("in the block")
        return "suppressed"

    async with agent(tool=tool_module(work)) as session:
        session.coordinator.register_capability("manager", Manager())
        assert await session.coordinator.get("tools")["work"].execute({}) == "suppressed"
    assert seen == [Broken]


# ── context variables and threads ────────────────────────────────────────────────────────────────


async def test_context_variables_travel_both_ways():
    async def inner() -> str:
        before = VARIABLE.get()
        VARIABLE.set("set on trio")
        return before

    async def work(given: Any, coordinator: Any) -> list[str]:
        seen = [VARIABLE.get()]
        VARIABLE.set("set on the island")
        seen.append(await coordinator.get_capability("inner")())
        seen.append(VARIABLE.get())
        seen.append(await asyncio.to_thread(VARIABLE.get))
        VARIABLE.set("left behind")
        return seen

    VARIABLE.set("set by the caller")
    seen = await result_of(work, inner=inner)
    assert seen == ["set by the caller", "set on the island", "set on trio", "set on trio"]
    assert VARIABLE.get() == "left behind"


async def test_sync_call_changes_context_variable():
    def inner() -> str:
        before = VARIABLE.get()
        VARIABLE.set("set by the sync call")
        return before

    async def work(given: Any, coordinator: Any) -> list[str]:
        VARIABLE.set("set on the island")
        return [coordinator.get_capability("inner")(), VARIABLE.get()]

    seen = await result_of(work, inner=inner)
    assert seen == ["set on the island", "set by the sync call"]
    assert VARIABLE.get() == "set by the sync call"


async def test_running_call_is_known_on_island():
    calls: list[Any] = []

    async def work(given: Any) -> ToolResult:
        calls.append(current_call())
        return ToolResult(success=True)

    async with agent(tool=tool_module(work), turns=[("work", {}), "done"]) as session:
        await session.execute("go")
    assert [(call.session_id, call.tool_name) for call in calls] == [(session.session_id, "work")]


async def test_coordinator_in_worker_thread_of_module():
    heard: list[Any] = []

    async def work(given: Any, coordinator: Any) -> list[str]:
        def in_thread() -> list[str]:
            coordinator.register_capability("from.thread", 1)
            coordinator.hooks.register(
                "own:event", lambda event, data: heard.append(event), name="from thread"
            )
            return sorted(coordinator.get("tools"))

        names = await asyncio.to_thread(in_thread)
        await coordinator.hooks.emit("own:event", {})
        return names

    async with agent(tool=tool_module(work)) as session:
        assert await session.coordinator.get("tools")["work"].execute({}) == ["work"]
        assert session.coordinator.get_capability("from.thread") == 1
    assert heard == ["own:event"]


async def test_background_task_uses_session_between_calls():
    heard: list[int] = []
    done = anyio.Event()

    async def mount(coordinator: Any, config: Any) -> Any:
        async def tick() -> None:
            for number in range(3):
                await coordinator.hooks.emit("own:tick", {"number": number})

        task = asyncio.create_task(tick())

        async def close() -> None:
            await task

        return close

    def hear(event: str, data: Any) -> None:
        heard.append(data["number"])
        if len(heard) == 3:
            done.set()

    session = agent(tool=asyncio_only(mount))
    session.coordinator.hooks.register("own:tick", hear)
    async with session:
        await done.wait()
    assert heard == [0, 1, 2]


async def test_tool_kept_beyond_session_fails_clearly(
    anyio_backend_name: str,
):
    async def work(given: Any) -> str:
        return "worked"

    async with agent(tool=tool_module(work)) as session:
        tool = session.coordinator.get("tools")["work"]
    if anyio_backend_name == "asyncio":
        assert await tool.execute({}) == "worked"
        return
    with pytest.raises(SessionStateError, match=r"asyncio island of session .* has ended"):
        await tool.execute({})


async def test_terminal_events_arrive_while_loop_unwinds():
    heard: list[str] = []
    began = anyio.Event()

    class Loop:
        async def execute(self, prompt: str, hooks: Any, coordinator: Any, **kwargs: Any) -> str:
            try:
                coordinator.get_capability("began")()
                await asyncio.Event().wait()
            finally:
                await hooks.emit("execution:end", {"status": "cancelled"})
                await hooks.emit("orchestrator:complete", {"status": "cancelled"})
            return "never"

    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("orchestrator", Loop())

    session = agent(loop=asyncio_only(mount))
    session.coordinator.register_capability("began", began.set)
    for event in ("execution:end", "orchestrator:complete"):
        session.coordinator.hooks.register(event, lambda event, data: heard.append(event))
    async with session, anyio.create_task_group() as group:
        group.start_soon(session.execute, "go")
        await began.wait()
        group.cancel_scope.cancel()
    assert heard == ["execution:end", "orchestrator:complete"]
