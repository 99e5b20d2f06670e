"""amplifier-core contracts, second part: `mount` and `on_session_ready`, their contracts and their patterns."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier import HookResult
from amplifier.events import ALL_EVENTS
from amplifier.testing import MockTool
from tests.seeds.seed_sessions import module, mounting, seed_session

# ── mount ──


async def test_canonical_cleanup_is_nested_closure() -> None:
    class MyClient:
        def __init__(self, url: str | None) -> None:
            self.url = url
            self.is_open = True

        @classmethod
        async def connect(cls, url: str | None) -> MyClient:
            return cls(url)

        async def aclose(self) -> None:
            self.is_open = False

    async def mount(coordinator, config: dict[str, Any] | None = None):
        client = await MyClient.connect((config or {}).get("url"))
        coordinator.register_capability("my.client", client)

        async def cleanup() -> None:
            await client.aclose()

        return cleanup

    async with seed_session(
        tools={"tool-x": mount}, configs={"tool-x": {"url": "https://example.org"}}
    ) as session:
        client = session.coordinator.get_capability("my.client")
        assert client.url == "https://example.org"
        assert client.is_open
    assert not client.is_open


# ── on_session_ready ──


async def nothing(coordinator, config=None):
    """A mount with nothing to do."""


async def test_optional_ready_return_value_is_ignored() -> None:
    called: list[str] = []

    async def on_session_ready(coordinator) -> Any:
        return lambda: called.append("not a cleanup")

    async with seed_session(
        tools={"tool-a": module(nothing, on_session_ready), "tool-b": nothing}
    ) as session:
        assert session.failures == []
    assert called == []


async def test_sync_ready_is_skipped_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []

    def on_session_ready(coordinator) -> None:
        called.append("called")

    with caplog.at_level(logging.WARNING, logger="amplifier"):
        async with seed_session(tools={"tool-x": module(nothing, on_session_ready)}) as session:
            assert session.initialized
    assert called == []
    assert "on_session_ready" in caplog.text
    assert "tool-x" in caplog.text


async def test_child_has_own_mounts_and_ready() -> None:
    story: list[tuple[str, str]] = []

    async def mount(coordinator, config=None):
        story.append(("mount", coordinator.session_id))

    async def on_session_ready(coordinator) -> None:
        story.append(("ready", coordinator.session_id))

    parent = seed_session(tools={"tool-x": module(mount, on_session_ready)}, session_id="parent")
    async with parent, parent.fork(session_id="child"):
        pass
    assert story == [
        ("mount", "parent"),
        ("ready", "parent"),
        ("mount", "child"),
        ("ready", "child"),
    ]


# ── patterns ──


async def test_anti_pattern_shares_coordinator_between_sessions() -> None:
    """What the document warns of: the last session to mount serves the requests of all.

    It writes ``get("tools", {})``, as if that were a dict's ``get``; the second argument is a name, so only the first
    is given here.
    """
    _coordinator: Any = None

    async def mount(coordinator, config: dict | None = None) -> None:
        nonlocal _coordinator
        _coordinator = coordinator

    async def handle_request(request):
        if _coordinator and _coordinator.get("tools").get("search"):
            return await _coordinator.get("tools")["search"].execute(**request.params)
        return None

    first, second = MockTool("search", output="first"), MockTool("search", output="second")
    request = SimpleNamespace(params={"input": {"query": "x"}})
    async with seed_session(tools={"tool-search": mounting(first)}, hooks={"hooks-x": mount}):
        assert (await handle_request(request)).output == "first"
        async with seed_session(tools={"tool-search": mounting(second)}, hooks={"hooks-x": mount}):
            assert (await handle_request(request)).output == "second"
    assert first.call_count == second.call_count == 1


async def test_correct_pattern_wires_per_session() -> None:
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

    request = SimpleNamespace(params={"input": {"query": "x"}})
    mine = {
        "tool-mine": module(mount, on_session_ready)
    }  # before the search tool: ready comes after all mounts
    first, second = MockTool("search", output="first"), MockTool("search", output="second")
    async with (
        seed_session(tools={**mine, "tool-search": mounting(first)}) as one,
        seed_session(tools={**mine, "tool-search": mounting(second)}) as two,
        seed_session(tools=mine) as without,
    ):
        assert (await handle_request(one.coordinator, request)).output == "first"
        assert (await handle_request(two.coordinator, request)).output == "second"
        assert await handle_request(without.coordinator, request) is None


async def test_ready_resource_registers_cleanup() -> None:
    cleaned: list[str] = []

    async def my_async_cleanup_fn() -> None:
        cleaned.append("done")

    async def on_session_ready(coordinator) -> None:
        coordinator.register_cleanup(my_async_cleanup_fn)

    async with seed_session(tools={"tool-x": module(nothing, on_session_ready)}):
        assert cleaned == []
    assert cleaned == ["done"]


async def test_canonical_use_subscribes_to_announced_events() -> None:
    heard: list[str] = []

    async def my_handler(event: str, data: dict[str, Any]) -> HookResult:
        heard.append(event)
        return HookResult(action="continue")

    async def mount(coordinator, config: dict | None = None):
        pass

    async def on_session_ready(coordinator) -> None:
        all_events = set(ALL_EVENTS)
        contributions = await coordinator.collect_contributions("observability.events")
        for event_list in contributions:
            all_events.update(event_list)
        for event in all_events:
            coordinator.hooks.register(event, my_handler, name="my-module")

    async def mount_delegate(coordinator, config=None):
        coordinator.register_contributor(
            "observability.events",
            "tool-delegate",
            lambda: ["delegate:agent_spawned", "delegate:agent_completed"],
        )

    async with seed_session(
        tools={"tool-delegate": mount_delegate},
        hooks={"hooks-logging": module(mount, on_session_ready)},
    ) as session:
        await session.coordinator.hooks.emit("delegate:agent_spawned", {})
        await session.coordinator.hooks.emit("delegate:not_announced", {})
        await session.execute("hello")
    assert heard == ["delegate:agent_spawned", "session:start", "session:end"]
