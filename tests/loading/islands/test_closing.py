"""The end of an asyncio island: after a session nothing of it is left, whatever its modules did."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import weakref
from typing import Any

import anyio
import pytest

from amplifier.errors import ModuleLoadError
from amplifier.models import ToolResult

from ._modules import ISLAND, agent, asyncio_only, result_of, tool_module


def islands() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(ISLAND)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def test_closing_leaves_no_thread_or_descriptor():
    loops: list[Any] = []
    before = descriptors()

    async def mount(coordinator: Any, config: Any) -> None:
        loops.append(asyncio.get_running_loop())
        loops.append(asyncio.create_task(asyncio.sleep(3600)))
        await asyncio.to_thread(os.getpid)

    async with agent(tool=asyncio_only(mount)):
        pass
    assert islands() == []
    if loops[0] is not _running_loop():
        assert loops[0].is_closed()
        assert loops[1].cancelled()
        assert descriptors() == before
    else:
        loops[1].cancel()


def _running_loop() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@pytest.mark.parametrize("strict", [True, False])
async def test_failed_mount_leaves_no_thread(strict: bool):
    async def mount(coordinator: Any, config: Any) -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        coordinator.register_cleanup(task.cancel)
        raise OSError("disk")

    session = agent(tool=asyncio_only(mount), strict=strict)
    if strict:
        with pytest.raises(ModuleLoadError) as caught:
            await session.__aenter__()
        assert isinstance(caught.value.__cause__, OSError)
        assert islands() == []
        return
    async with session:
        assert session.coordinator.get("tools") == {}
    assert islands() == []


async def test_manual_session_ends_its_island(anyio_backend_name: str):
    async def work(given: Any) -> ToolResult:
        await asyncio.sleep(0)
        return ToolResult(success=True, output="worked")

    session = agent(tool=tool_module(work), turns=[("work", {}), "done"])
    await session.initialize()
    assert len(islands()) == (anyio_backend_name == "trio")
    assert await session.execute("go") == "done"
    await session.cleanup()
    assert islands() == []


@pytest.mark.parametrize("sort", ["swallows once", "swallows always", "swallows everything"])
async def test_stubborn_task_does_not_block_closing(
    sort: str, anyio_backend_name: str, caplog: pytest.LogCaptureFixture
):
    if anyio_backend_name == "asyncio":
        return  # a task that a module starts on the application's own loop is the application's to end
    swallowed: list[str] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed.append("once")
                if sort == "swallows once" and len(swallowed) > 1:
                    raise
            except GeneratorExit:
                if sort != "swallows everything":
                    raise
                return

    tasks: list[Any] = []

    async def mount(coordinator: Any, config: Any) -> None:
        tasks.append(asyncio.create_task(stubborn(), name="stubborn"))
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        async with agent(tool=asyncio_only(mount), deadlines={"cleanup": 0.5, "teardown": 1}):
            pass
    assert islands() == []
    assert tasks[0].done()
    assert len(swallowed) > 1
    assert ("ignores its cancellation" in caplog.text) == (sort != "swallows once")
    assert ("asyncio island" in caplog.text) == (sort != "swallows once")


async def test_hanging_mount_ends_at_deadline():
    unwound: list[str] = []

    async def mount(coordinator: Any, config: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            unwound.append("unwound")

    async with agent(tool=asyncio_only(mount), deadlines={"mount": 0.05}) as session:
        assert session.coordinator.get("tools") == {}
    assert unwound == ["unwound"]
    assert islands() == []


async def test_hanging_cleanup_is_reported_and_others_run(
    caplog: pytest.LogCaptureFixture,
):
    closed: list[str] = []

    async def mount(coordinator: Any, config: Any) -> Any:
        coordinator.register_cleanup(lambda: closed.append("first"))

        async def hang() -> None:
            await asyncio.sleep(3600)

        return hang

    async with agent(tool=asyncio_only(mount), deadlines={"cleanup": 0.05}):
        pass
    assert closed == ["first"]
    assert "cleanup of tool-own failed: no answer within 0.05 s" in caplog.text
    assert islands() == []


async def test_exiting_background_task_keeps_island_alive(anyio_backend_name: str):
    if anyio_backend_name == "asyncio":
        return  # it would end the application's own loop
    raised = anyio.Event()

    async def work(given: Any, coordinator: Any) -> str:
        async def leave() -> None:
            coordinator.get_capability("raised")()
            raise SystemExit(3)

        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        return "still here"

    session = agent(tool=tool_module(work))
    session.coordinator.register_capability("raised", raised.set)
    async with session:
        tool = session.coordinator.get("tools")["work"]
        assert await tool.execute({}) == "still here"
        assert await tool.execute({}) == "still here"


async def test_closed_session_is_collected_with_modules():
    references: list[Any] = []

    async def open_and_close() -> None:
        class Tool:
            name = "own"
            description = "Is collected."

            def __init__(self, coordinator: Any) -> None:
                self.coordinator = coordinator

            async def execute(self, input: Any) -> ToolResult:  # noqa: A002  # the contract's name
                await asyncio.sleep(0)
                await self.coordinator.hooks.emit("own:event", {})
                return ToolResult(success=True)

        async def mount(coordinator: Any, config: Any) -> None:
            tool = Tool(coordinator)
            references.append(weakref.ref(tool))
            await coordinator.mount("tools", tool)

        async with agent(tool=asyncio_only(mount), turns=[("own", {}), "done"]) as session:
            references.append(weakref.ref(session))
            await session.execute("go")

    await open_and_close()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


async def test_stopped_loop_continues(anyio_backend_name: str):
    if anyio_backend_name == "asyncio":
        return  # it would end the application's own loop

    async def work(given: Any) -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "still here"

    assert await result_of(work) == "still here"
