"""Modules of all five kinds that need asyncio work in sessions on asyncio and on trio alike."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio.lowlevel
import pytest

from amplifier import ModuleLoader
from amplifier.contracts import Tool as ToolContract
from amplifier.errors import ModuleLoadError, SessionStateError
from amplifier.models import HookResult, ToolResult
from amplifier.testing import MockApprovalSystem, MockContextManager

from ._modules import (
    Context,
    Tool,
    agent,
    asyncio_only,
    is_on_island,
    mount_context,
    mount_hooks,
    mount_loop,
    mount_provider,
    mount_search,
    result_of,
    tool_module,
)


@pytest.mark.parametrize("which", list(product([True, False], repeat=2)), ids=str)
async def test_modules_of_all_kinds_work_together(which: tuple[bool, bool]):
    own_loop, own_context = which
    heard: list[str] = []
    session = agent(
        loop=asyncio_only(mount_loop) if own_loop else None,
        context=asyncio_only(mount_context) if own_context else None,
        provider=asyncio_only(mount_provider),
        tool=asyncio_only(mount_search),
        hooks=asyncio_only(mount_hooks(heard)),
    )
    async with session:
        answer = await session.execute("look for it")
        messages = await session.coordinator.get("context").get_messages()
        contributed = await session.coordinator.collect_contributions("observability.events")

    assert answer == "found"
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert "NEEDLE" in str(messages[2]["content"])
    assert heard == ["tool:pre", "tool:post in a task"]
    assert ["own:event"] in contributed


async def test_own_objects_unwrapped_and_others_wrapped(
    anyio_backend_name: str,
):
    seen: dict[str, Any] = {}

    async def mount(coordinator: Any, config: Any) -> None:
        async def work(given: Any) -> ToolResult:
            return ToolResult(success=True)

        tool = Tool(work)
        await coordinator.mount("tools", tool)
        seen.update(own=coordinator.get("tools")["work"] is tool, session=coordinator.session_id)
        seen["provider"] = coordinator.get("providers")["mock"].get_info().id
        coordinator.own_attribute = coordinator.passing = {"a": 1}
        seen["attribute"] = coordinator.own_attribute
        del coordinator.passing
        seen["deleted"] = not hasattr(coordinator, "passing")
        seen["config"] = coordinator.config["session"]["context"]

    session = agent(tool=asyncio_only(mount))
    async with session:
        tool = session.coordinator.get("tools")["work"]
        assert isinstance(tool, ToolContract)
        assert (tool.name, tool.description) == ("work", "Works with asyncio.")
        assert vars(session.coordinator)["own_attribute"] == {"a": 1}
    assert seen == {
        "own": True,
        "session": session.session_id,
        "provider": "mock",
        "attribute": {"a": 1},
        "deleted": True,
        "config": "context-simple",
    }


async def test_mount_point_objects_run_on_own_side(
    anyio_backend_name: str,
):
    class Where:
        name = "where"
        description = "Says where it runs; awaited by contract, though it is not async."
        input_schema: ClassVar[dict[str, Any]] = {"type": "object"}

        def execute(self, input: Any) -> Any:  # noqa: A002  # the contract's name
            return asyncio.sleep(0, is_on_island()) if input else is_on_island()

    seen: list[Any] = []

    async def mount(coordinator: Any, config: Any) -> None:
        tools = coordinator.mount_points["tools"]
        seen.append(await tools["native"].execute({}))
        tools["where"] = Where()
        seen.append((sorted(tools), len(tools), type(tools["where"]) is Where))

    async def native(given: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return is_on_island()

    session = agent(tool=asyncio_only(mount))
    await session.coordinator.mount("tools", Tool(native), name="native")
    async with session:
        where = session.coordinator.get("tools")["where"]
        seen += [await where.execute({"a": 1})] + (
            [await where.execute({})] if anyio_backend_name == "trio" else []
        )
    on_island = anyio_backend_name == "trio"
    assert seen == [
        False,
        (["native", "where"], 2, True),
        on_island,
        *([True] if on_island else []),
    ]


async def test_returned_instance_and_cleanup(
    anyio_backend_name: str,
):
    calls: list[bool] = []

    async def mount(coordinator: Any, config: Any) -> Any:
        async def close() -> None:
            calls.append(is_on_island())

        coordinator.register_cleanup(close)
        return close

    async with agent(context=asyncio_only(mount_context), tool=asyncio_only(mount)) as session:
        context = session.coordinator.get("context")
        assert (type(context).__name__, isinstance(context, Context)) == (
            "Context",
            anyio_backend_name == "asyncio",
        )
    assert calls == [anyio_backend_name == "trio"]


async def test_structured_mount_keeps_timeout_and_task_group():
    steps: list[str] = []

    @asynccontextmanager
    async def mount(coordinator: Any, config: Any) -> Any:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            background = group.create_task(asyncio.Event().wait())
            task = asyncio.current_task()
            await coordinator.mount("tools", MockContextManager(), name="odd")
            steps.append("entered")
            yield
            assert asyncio.current_task() is task
            background.cancel()
        steps.append("left")

    async with agent(tool=asyncio_only(mount)):
        assert steps == ["entered"]
    assert steps == ["entered", "left"]


async def test_ready_callback_runs_on_loop_of_mount(anyio_backend_name: str):
    seen: list[Any] = []

    async def mount(coordinator: Any, config: Any) -> None:
        seen.append(asyncio.get_running_loop())

    async def on_session_ready(coordinator: Any) -> None:
        await asyncio.sleep(0)
        seen.append(asyncio.get_running_loop())
        seen.append(sorted(coordinator.get("providers")))

    async with agent(tool=asyncio_only(mount, on_session_ready=on_session_ready)):
        pass
    assert seen[0] is seen[1]
    assert seen[2] == ["mock"]


async def test_capabilities_are_callable_both_ways():
    async def mount(coordinator: Any, config: Any) -> None:
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return 2 * await coordinator.get_capability("next")(number)

        coordinator.register_capability("double", double)
        coordinator.register_capability("name", lambda: "sync")
        coordinator.register_capability("data", {"answer": 42})

    session = agent(tool=asyncio_only(mount))

    async def following(number: int) -> int:
        return number + 1

    session.coordinator.register_capability("next", following)
    async with session:
        get = session.coordinator.get_capability
        assert await get("double")(3) == 8
        assert get("name")() == "sync"
        assert get("data") == {"answer": 42}


async def test_callable_objects_run_on_own_side(
    anyio_backend_name: str,
):
    on_island: list[bool] = []

    class Handler:
        async def __call__(self, event: str, data: Any) -> None:
            await asyncio.sleep(0)
            on_island.append(is_on_island())

    async def look() -> None:
        await asyncio.sleep(0)
        on_island.append(is_on_island())

    async def mount(coordinator: Any, config: Any) -> None:
        coordinator.hooks.register("own:event", Handler(), name="object")
        coordinator.register_capability("kept", SimpleNamespace(look=look))
        coordinator.register_capability("called", Handler())

    async with agent(hooks=asyncio_only(mount)) as session:
        await session.coordinator.hooks.emit("own:event", {})
        await session.coordinator.get_capability("kept").look()
        await session.coordinator.get_capability("called")("own:event", {})
    assert on_island == 3 * [anyio_backend_name == "trio"]


async def test_object_inside_data_runs_on_own_side():
    async def native(given: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return is_on_island()

    async def work(given: Any, coordinator: Any) -> bool:
        tools = {"deep": {"inside": coordinator.get("tools")["native"]}}
        return bool(await coordinator.get_capability("use")(tools))

    async def use(tools: Any) -> bool:
        return bool(await tools["deep"]["inside"].execute({}))

    session = agent(tool=tool_module(work))
    await session.coordinator.mount("tools", Tool(native), name="native")
    session.coordinator.register_capability("use", use)
    async with session:
        was_on_island: Any = await session.coordinator.get("tools")["work"].execute({})
    assert was_on_island is False


async def test_module_runs_child_session(anyio_backend_name: str):
    async def work(given: Any, coordinator: Any) -> ToolResult:
        child = coordinator.session.fork({"tools": []})
        async with child:
            return ToolResult(
                success=True, output=await child.execute(f"{given['task']} as a child")
            )

    # The child has the same script, and no such tool.
    session = agent(tool=tool_module(work), turns=[("work", {"task": "count"}), "done"])
    results: list[Any] = []
    session.coordinator.hooks.register(
        "tool:post", lambda event, data: results.append(data["result"]["output"])
    )
    async with session:
        assert await session.execute("go") == "done"
    assert results == ["done"]


async def test_event_stream_is_read_on_island():
    async def work(given: Any, coordinator: Any) -> ToolResult:
        child = coordinator.session.fork({"tools": []})
        async with child, child.stream("as a child") as events:
            return ToolResult(success=True, output=[type(event).__name__ async for event in events])

    assert (await result_of(work)).output


async def test_approval_hooks_ask_application():
    approvals = MockApprovalSystem(["Allow"])

    async def mount(coordinator: Any, config: Any) -> None:
        async def ask(event: str, data: Any) -> HookResult:
            await asyncio.sleep(0)
            return HookResult(action="ask_user", approval_prompt=f"May I? ({data['tool_name']})")

        coordinator.hooks.register("tool:pre", ask, name="ask")

    async def work(given: Any) -> ToolResult:
        return ToolResult(success=True, output="worked")

    session = agent(tool=tool_module(work), hooks=asyncio_only(mount), turns=[("work", {}), "done"])
    session.coordinator.approval_system = approvals
    async with session:
        assert await session.execute("go") == "done"
    assert [request["prompt"] for request in approvals.requests] == ["May I? (work)"]


# ── one loop, when it is needed ──────────────────────────────────────────────────────────────────


async def test_modules_of_session_share_one_loop(anyio_backend_name: str):
    loops: list[Any] = []

    async def mount(coordinator: Any, config: Any) -> None:
        loops.append(asyncio.get_running_loop())

    module = asyncio_only(mount)
    async with agent(tool=module, hooks=module), agent(tool=module):
        islands = [
            thread
            for thread in threading.enumerate()
            if thread.name.startswith("amplifier asyncio island")
        ]
    assert loops[0] is loops[1]
    assert (loops[0] is loops[2], len(islands)) == (
        (True, 0) if anyio_backend_name == "asyncio" else (False, 2)
    )


WITHOUT = """
import sys, threading, trio
from amplifier import AmplifierSession

async def main():
    plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}}
    async with AmplifierSession(plan):
        print(threading.active_count(), [name for name in sys.modules if "_islands" in name], "asyncio" in sys.modules)

trio.run(main)
"""


def test_unused_island_is_not_imported():
    program = [sys.executable, "-c", WITHOUT]
    seen = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    assert seen == "1 [] False\n"


async def test_unowned_island_is_not_started(anyio_backend_name: str):
    async def mount(coordinator: Any, config: Any) -> str:
        return "mounted"

    module = await ModuleLoader(modules={"tool-own": asyncio_only(mount)}).load("tool-own")
    async with agent() as session:
        pass
    if anyio_backend_name == "asyncio":
        assert await module(SimpleNamespace()) == "mounted"
        return
    with pytest.raises(
        ModuleLoadError, match=r"'tool-own' needs asyncio, and .* has no asyncio island"
    ):
        await module(SimpleNamespace())
    with pytest.raises(SessionStateError, match="is closed and can't start an asyncio island"):
        await module(session.coordinator)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", ["hooks", "get", "mount_points"])
async def test_handlers_belong_to_registering_module(
    way: str, fails: bool, anyio_backend_name: str
):
    heard: list[bool] = []

    async def mount(coordinator: Any, config: Any) -> None:
        async def note(event: str, data: dict[str, Any]) -> None:
            await asyncio.sleep(0)
            heard.append(is_on_island())

        hooks = {"hooks": coordinator.hooks, "get": coordinator.get("hooks")}.get(
            way
        ) or coordinator.mount_points["hooks"]
        hooks.register("own:event", note, name="note")
        if fails:
            raise OSError("no")

    async with agent(hooks=asyncio_only(mount)) as session:
        registered = session.coordinator.hooks.registrations_of("hooks-own")
        assert [each.name for each in registered] == ([] if fails else ["note"])
        await session.coordinator.hooks.emit("own:event", {})
    assert heard == ([] if fails else [anyio_backend_name == "trio"])
