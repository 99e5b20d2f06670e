"""Coordinator API, first part: how a coordinator is made and the seven properties it shows to modules."""

# ruff: noqa: G004 - the snippets as the document writes them

from __future__ import annotations

import logging
from typing import Any

import pytest

from amplifier import AmplifierSession, HookRegistry, HookResult, ModuleCoordinator, ModuleLoader
from amplifier.plan import parse_plan
from amplifier.testing import EventRecorder, MockProvider, MockTool
from tests.seeds.seed_sessions import mounting, seed_session

logger = logging.getLogger("seeds")


async def test_every_mount_receives_session_coordinator(
    seed_plan: dict[str, Any],
) -> None:
    """The intro. Each module gets a view of the one coordinator (decided, DESIGN 6), so identity is not asserted."""
    config = seed_plan
    session = AmplifierSession(config)
    coordinator = session.coordinator
    assert isinstance(coordinator, ModuleCoordinator)

    seen: dict[str, Any] = {}

    def my_function() -> str:
        return "called"

    def cleanup_function() -> None:
        seen["cleaned"] = True

    async def mount(coordinator, config):
        session_id = coordinator.session_id
        parent_id = coordinator.parent_id

        context = coordinator.get("context")
        providers = coordinator.get("providers")

        coordinator.register_capability("my_feature.action", my_function)

        seen.update(
            session_id=session_id, parent_id=parent_id, context=context, providers=providers
        )
        return cleanup_function

    session.loader.register("tool-mine", mount)
    config["tools"] = [{"module": "tool-mine"}]
    async with session:
        assert seen["session_id"] == session.session_id
        assert seen["parent_id"] is None
        assert seen["context"] is coordinator.get("context")
        assert seen["providers"] == {}
        assert coordinator.get_capability("my_feature.action")() == "called"
        assert "cleaned" not in seen
    assert seen["cleaned"]


async def test_typical_property_usage(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    seen: dict[str, Any] = {}

    async def my_hook(event: str, data: dict[str, Any]) -> HookResult:
        heard.append(event)
        return HookResult(action="continue")

    async def mount(coordinator, config):
        logger.info(f"Mounting in session {coordinator.session_id}")
        if coordinator.parent_id:
            logger.info(f"  Child of session {coordinator.parent_id}")

        my_config = config
        session_config = coordinator.config.get("session", {})

        coordinator.hooks.register("tool:pre", my_hook, priority=10)

        providers = coordinator.mount_points["providers"]
        seen.update(my_config=my_config, session_config=session_config, providers=providers)

    provider = MockProvider()
    session = seed_session(
        providers={"provider-x": mounting(provider)},
        hooks={"hooks-x": mount},
        configs={"hooks-x": {"level": 3}},
        session_id="the-child",
        parent_id="the-parent",
    )
    with caplog.at_level(logging.INFO, logger="seeds"):
        async with session:
            await session.coordinator.hooks.emit("tool:pre", {})
            assert seen["providers"] == {"mock": provider}
    assert caplog.messages == ["Mounting in session the-child", "  Child of session the-parent"]
    assert seen["my_config"] == {"level": 3}
    assert seen["session_config"]["orchestrator"] == "loop-seed"
    assert heard == ["tool:pre"]


# ── session_id and parent_id ──


async def test_child_fork_event_carries_both_ids() -> None:
    recorder = EventRecorder()

    async def mount(coordinator, config):
        recorder.listen(coordinator.hooks)

    async with seed_session(
        hooks={"hooks-x": mount}, session_id="child", parent_id="parent"
    ) as session:
        await session.execute("hello")
    assert "session:fork" in recorder.names()
    assert recorder.names().index("session:fork") < recorder.names().index("session:start")
    assert {(data["session_id"], data["parent_id"]) for _, data in recorder.events} == {
        ("child", "parent")
    }


# ── config ──


def test_documented_configuration_is_valid_plan() -> None:
    """The document's dict; its ``{...}`` placeholders are empty dicts here."""
    config = {
        "session": {
            "orchestrator": "loop-basic",
            "context": "context-simple",
            "injection_budget_per_turn": 50000,
            "injection_size_limit": 100000,
        },
        "providers": [{"module": "provider-anthropic", "config": {}}],
        "tools": [{"module": "tool-bash", "config": {}}],
        "hooks": [{"module": "hook-linter", "config": {}}],
        "agents": {
            "researcher": {"max_iterations": 10},
        },
    }
    plan = parse_plan(config)
    assert plan.warnings == []
    assert (plan.orchestrator.module, plan.context.module) == ("loop-basic", "context-simple")
    assert [spec.module for spec in (*plan.providers, *plan.tools, *plan.hooks)] == [
        "provider-anthropic",
        "tool-bash",
        "hook-linter",
    ]
    assert plan.agents == {"researcher": {"max_iterations": 10}}
    session = AmplifierSession(config)
    assert session.coordinator.config is config
    assert session.coordinator.injection_budget_per_turn == 50000
    assert session.coordinator.injection_size_limit == 100000


# ── loader ──


async def test_loader_loads_module_at_run_time() -> None:
    cleaned: list[str] = []

    async def mount_dynamic(coordinator, config):
        await coordinator.mount("tools", MockTool("dynamic"))
        return lambda: cleaned.append("dynamic")

    async def mount(coordinator, config):
        tool_id = config.get("dynamic_tool")

        if tool_id:
            tool_mount = await coordinator.loader.load(tool_id, {})
            cleanup = await tool_mount(coordinator)
            if cleanup:
                coordinator.register_cleanup(cleanup)

    session = seed_session(
        tools={"tool-mine": mount}, configs={"tool-mine": {"dynamic_tool": "tool-dynamic"}}
    )
    session.loader.register("tool-dynamic", mount_dynamic)
    async with session:
        assert isinstance(session.coordinator.loader, ModuleLoader)
        assert "dynamic" in session.coordinator.get("tools")
        assert cleaned == []
    assert cleaned == ["dynamic"]


# ── hooks ──


async def test_hook_registration_emission_and_shutdown() -> None:
    """A cleanup that is the ``unregister`` of a handler runs before the session is closed."""
    recorder = EventRecorder()
    validated: list[dict[str, Any]] = []

    async def my_validation_hook(event: str, data: dict[str, Any]) -> HookResult:
        validated.append(data)
        return HookResult(action="continue")

    async def mount(coordinator, config):
        recorder.listen(coordinator.hooks, "custom:event")
        unregister = coordinator.hooks.register(
            event="tool:pre",
            handler=my_validation_hook,
            priority=10,
        )

        await coordinator.hooks.emit("custom:event", {"data": "example"})

        coordinator.register_cleanup(unregister)

    session = seed_session(hooks={"hooks-x": mount}, session_id="s-1")
    async with session:
        assert isinstance(session.coordinator.hooks, HookRegistry)
        await session.coordinator.hooks.emit("tool:pre", {"tool_name": "bash"})
    assert validated[0]["tool_name"] == "bash"
    [(_, data)] = recorder.events
    assert data["data"] == "example"
    assert (data["session_id"], data["parent_id"]) == ("s-1", None)
    await session.coordinator.hooks.emit("tool:pre", {})
    assert len(validated) == 1


# ── mount_points ──


async def test_mount_points_serve_introspection(caplog: pytest.LogCaptureFixture) -> None:
    async def mount(coordinator, config):
        if coordinator.mount_points["orchestrator"] is None:
            raise RuntimeError("No orchestrator mounted")

        for name, _provider in coordinator.mount_points["providers"].items():
            logger.info(f"Provider available: {name}")

        tool_count = len(coordinator.mount_points["tools"])
        logger.info(f"Session has {tool_count} tools mounted")

    providers = {"provider-x": mounting(MockProvider(name="anthropic"))}
    tools = {"tool-x": mounting(MockTool("bash"))}
    with caplog.at_level(logging.INFO, logger="seeds"):
        async with seed_session(
            providers=providers, tools=tools, hooks={"hooks-x": mount}
        ) as session:
            assert session.failures == []
    assert caplog.messages == ["Provider available: anthropic", "Session has 1 tools mounted"]

    with pytest.raises(RuntimeError, match="No orchestrator mounted"):
        await mount(seed_session().coordinator, {})
