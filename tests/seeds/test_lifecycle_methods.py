"""amplifier-core contracts, second part: `mount` and `on_session_ready`, their contracts and their patterns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from amplifier.testing import MockProvider, MockTool
from tests._support.seed_sessions import module, mount_context, mount_loop, seed_session

# ── mount ──


async def test_mount_is_a_free_function_called_once_in_phase_order() -> None:
    """Its config parameter may have a default; it is given a dict either way."""
    calls: list[tuple[str, dict[str, Any], list[str]]] = []

    def mounting(name: str, instance: Any = None):
        async def mount(
            coordinator, config: dict[str, Any] | None = None
        ) -> Callable[[], Awaitable[None] | None] | None:
            points = coordinator.mount_points
            present = [point for point in ("orchestrator", "context", "providers", "tools") if points[point]]
            calls.append((name, dict(config or {}), present))
            return instance

        return mount

    async def loop(coordinator, config=None):
        await mounting("loop")(coordinator, config)
        await mount_loop(coordinator, config)

    async def context(coordinator, config=None):
        await mounting("context")(coordinator, config)
        return await mount_context(coordinator, config)

    async with seed_session(
        loop=loop,
        context=context,
        providers={"provider-x": mounting("provider", MockProvider())},
        tools={"tool-x": mounting("tool", MockTool())},
        hooks={"hooks-x": mounting("hook")},
        configs={"tool-x": {"a": 1}},
    ):
        assert calls == [
            ("loop", {}, []),
            ("context", {}, ["orchestrator"]),
            ("provider", {}, ["orchestrator", "context"]),
            ("tool", {"a": 1}, ["orchestrator", "context", "providers"]),
            ("hook", {}, ["orchestrator", "context", "providers", "tools"]),
        ]


# ── on_session_ready ──


async def nothing(coordinator, config=None):
    """A mount with nothing to do."""


async def test_ready_runs_after_all_mounts_in_mount_order_and_before_session_fork() -> None:
    story: list[str] = []

    def both(name: str, mount_it: Any = nothing):
        async def mount(coordinator, config=None):
            story.append(f"mount {name}")
            return await mount_it(coordinator, config)

        async def on_session_ready(coordinator) -> None:
            story.append(f"ready {name}")

        return module(mount, on_session_ready)

    async def mount_listener(coordinator, config=None):
        async def heard(event: str, data: dict[str, Any]) -> None:
            story.append(event)

        coordinator.hooks.register("session:fork", heard)

    async with seed_session(
        loop=both("loop", mount_loop),
        context=both("context", mount_context),
        providers={"provider-x": both("provider")},
        tools={"tool-a": both("tool a"), "tool-b": both("tool b")},
        hooks={"hooks-x": both("hook", mount_listener)},
        parent_id="the-parent",
    ):
        names = ["loop", "context", "provider", "tool a", "tool b", "hook"]
        assert story == [*(f"mount {n}" for n in names), *(f"ready {n}" for n in names), "session:fork"]


async def test_a_child_has_its_own_mounts_and_its_own_ready() -> None:
    story: list[tuple[str, str]] = []

    async def mount(coordinator, config=None):
        story.append(("mount", coordinator.session_id))

    async def on_session_ready(coordinator) -> None:
        story.append(("ready", coordinator.session_id))

    parent = seed_session(tools={"tool-x": module(mount, on_session_ready)}, session_id="parent")
    async with parent, parent.fork(session_id="child"):
        pass
    assert story == [("mount", "parent"), ("ready", "parent"), ("mount", "child"), ("ready", "child")]


# ── patterns ──


async def test_the_correct_pattern_wires_per_session_in_on_session_ready() -> None:
    async def mount(coordinator, config: dict | None = None) -> None:
        pass

    async def on_session_ready(coordinator) -> None:
        tools = coordinator.get("tools") or {}
        search_tool = tools.get("search")
        if search_tool:
            coordinator.register_capability("my_module.search_tool", search_tool)

    async def handle_request(coordinator, request):
        search_tool = coordinator.get_capability("my_module.search_tool")
        if search_tool:
            return await search_tool.execute(**request.params)
        return None

    def searching(tool: MockTool):
        async def mount_search(coordinator, config=None):
            return tool

        return mount_search

    request = SimpleNamespace(params={"input": {"query": "x"}})
    mine = {"tool-mine": module(mount, on_session_ready)}  # before the search tool: ready comes after all mounts
    first, second = MockTool("search", output="first"), MockTool("search", output="second")
    async with (
        seed_session(tools={**mine, "tool-search": searching(first)}) as one,
        seed_session(tools={**mine, "tool-search": searching(second)}) as two,
        seed_session(tools=mine) as without,
    ):
        assert (await handle_request(one.coordinator, request)).output == "first"
        assert (await handle_request(two.coordinator, request)).output == "second"
        assert await handle_request(without.coordinator, request) is None


async def test_a_resource_of_ready_registers_its_cleanup_itself() -> None:
    cleaned: list[str] = []

    async def my_async_cleanup_fn() -> None:
        cleaned.append("done")

    async def on_session_ready(coordinator) -> None:
        coordinator.register_cleanup(my_async_cleanup_fn)

    async with seed_session(tools={"tool-x": module(nothing, on_session_ready)}):
        assert cleaned == []
    assert cleaned == ["done"]
