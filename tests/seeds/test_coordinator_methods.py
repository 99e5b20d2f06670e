"""Coordinator API, second part: the methods, each with its signature, its snippets and the prose around them."""

# ruff: noqa: G004 - the snippets as the document writes them

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest

from amplifier import AmplifierSession, HookResult, ModuleCoordinator, Orchestrator, Provider
from amplifier.testing import (
    MockContextManager,
    MockProvider,
    MockTool,
    ScriptedOrchestrator,
    TestCoordinator,
    create_test_coordinator,
)
from tests._support.seed_sessions import seed_session

logger = logging.getLogger("seeds")

SIGNATURES = {
    "mount": [("mount_point", ...), ("module", ...), ("name", None)],
    "unmount": [("mount_point", ...), ("name", None)],
    "get": [("mount_point", ...), ("name", None)],
    "register_cleanup": [("cleanup_fn", ...)],
    "register_capability": [("name", ...), ("value", ...)],
    "get_capability": [("name", ...)],
    "register_contributor": [("channel", ...), ("name", ...), ("callback", ...)],
    "collect_contributions": [("channel", ...)],
    "process_hook_result": [("result", ...), ("event", ...), ("hook_name", "unknown")],
    "cleanup": [],
    "reset_turn": [],
}
"""Every method of the document's table with its parameters and their defaults; the dots mean none."""


class MyTool:
    """The tool of the snippets: something to mount and something to shut down."""

    def __init__(self, setting: str = "default") -> None:
        self.setting = setting
        self.is_open = True

    @property
    def name(self) -> str:
        return "my-tool"

    @property
    def description(self) -> str:
        return "Analyzes."

    async def execute(self, input: dict[str, Any]) -> Any:  # noqa: A002 - the contract's name
        return await MockTool().execute(input)

    def analyze(self) -> str:
        return "analyzed"

    async def shutdown(self) -> None:
        self.is_open = False


@pytest.fixture
def coordinator() -> TestCoordinator:
    return TestCoordinator()


@pytest.mark.parametrize(("name", "parameters"), SIGNATURES.items())
def test_every_method_has_the_signature_of_the_document(name: str, parameters: list[tuple[str, Any]]) -> None:
    found = list(inspect.signature(getattr(ModuleCoordinator, name)).parameters.values())[1:]
    assert [(p.name, ... if p.default is p.empty else p.default) for p in found] == parameters


async def test_typical_method_usage_flow() -> None:
    """The cleanup is both registered and returned; it runs once (the document does both in three places)."""
    mounted: dict[str, Any] = {"cleaned": 0}

    async def mount(coordinator, config):
        tool = MyTool()
        await coordinator.mount("tools", tool, name="my-tool")

        coordinator.register_capability("my-tool.analyze", tool.analyze)

        context = coordinator.get("context")

        async def cleanup():
            await tool.shutdown()
            mounted["cleaned"] += 1

        coordinator.register_cleanup(cleanup)
        mounted.update(tool=tool, context=context)
        return cleanup

    async with seed_session(tools={"tool-mine": mount}) as session:
        assert session.coordinator.get("tools", "my-tool") is mounted["tool"]
        assert session.coordinator.get_capability("my-tool.analyze")() == "analyzed"
        assert mounted["context"] is session.coordinator.get("context")
        assert mounted["tool"].is_open
    assert not mounted["tool"].is_open
    assert mounted["cleaned"] == 1


# ── mount ──


async def test_mount_at_single_and_multiple_mount_points(coordinator: TestCoordinator) -> None:
    orchestrator_instance, context_instance = ScriptedOrchestrator([]), MockContextManager()
    provider, bash = MockProvider(), MockTool("bash")

    await coordinator.mount("orchestrator", orchestrator_instance)
    await coordinator.mount("context", context_instance)

    await coordinator.mount("providers", provider, name="anthropic")
    await coordinator.mount("tools", bash, name="bash")

    tool = MyTool()
    await coordinator.mount("tools", tool)

    assert coordinator.get("orchestrator") is orchestrator_instance
    assert coordinator.get("context") is context_instance
    assert coordinator.get("providers") == {"anthropic": provider}
    assert coordinator.get("tools") == {"bash": bash, "my-tool": tool}


async def test_mount_returns_none_and_works_without_await() -> None:
    """One snippet of the module source document mounts without ``await``; both forms work (decided, DESIGN 6)."""
    coordinator = ModuleCoordinator()
    assert await coordinator.mount("context", MockContextManager()) is None  # type: ignore[func-returns-value]  # that is the point
    resolver: Any = object()
    coordinator.mount("module-source-resolver", resolver)  # type: ignore[unused-awaitable]  # as the document has it
    assert coordinator.get("module-source-resolver") is resolver


async def test_mount_refuses_unknown_points_missing_names_and_hooks(coordinator: TestCoordinator) -> None:
    """``"category"`` is the quick start's placeholder for a mount point, and not one."""
    with pytest.raises(ValueError, match="Unknown mount point"):
        await coordinator.mount("category", MyTool(), name="my-module")
    for point in ("providers", "tools"):
        with pytest.raises(ValueError, match=f"Name required for {point}"):
            await coordinator.mount(point, object())
    with pytest.raises(ValueError, match=r"hooks\.register"):
        await coordinator.mount("hooks", object())


@pytest.mark.parametrize("point", ["orchestrator", "context", "module-source-resolver"])
async def test_a_single_mount_point_replaces_what_is_there(
    coordinator: TestCoordinator, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = object(), object()
    await coordinator.mount(point, first)
    with caplog.at_level(logging.WARNING, logger="amplifier"):
        await coordinator.mount(point, second)
    assert coordinator.get(point) is second  # type: ignore[call-overload]  # any of them
    assert ("replaced" in caplog.text) == (point == "orchestrator")


# ── unmount ──


async def test_unmount_empties_single_and_multiple_mount_points(coordinator: TestCoordinator) -> None:
    await coordinator.mount("orchestrator", ScriptedOrchestrator([]))
    await coordinator.mount("context", MockContextManager())
    await coordinator.mount("providers", MockProvider(), name="anthropic")
    await coordinator.mount("providers", MockProvider(), name="openai")
    await coordinator.mount("tools", MockTool(), name="bash")
    new_provider = MockProvider()

    await coordinator.unmount("orchestrator")
    await coordinator.unmount("context")

    await coordinator.unmount("providers", name="anthropic")
    await coordinator.unmount("tools", name="bash")

    await coordinator.unmount("providers", name="openai")
    await coordinator.mount("providers", new_provider, name="openai")

    assert coordinator.get("orchestrator") is None
    assert coordinator.get("context") is None
    assert coordinator.get("tools") == {}
    assert coordinator.get("providers") == {"openai": new_provider}


async def test_unmount_refuses_unknown_points_and_missing_names(coordinator: TestCoordinator) -> None:
    with pytest.raises(ValueError, match="Unknown mount point"):
        await coordinator.unmount("category")
    for point in ("providers", "tools"):
        with pytest.raises(ValueError, match="Name required"):
            await coordinator.unmount(point)


async def test_unmounting_runs_no_cleanup(coordinator: TestCoordinator) -> None:
    ran: list[str] = []
    await coordinator.mount("tools", MyTool())
    coordinator.register_cleanup(lambda: ran.append("cleanup"))
    await coordinator.unmount("tools", "my-tool")
    assert ran == []
    await coordinator.cleanup()
    assert ran == ["cleanup"]


# ── get ──


async def test_get_returns_one_all_or_none(coordinator: TestCoordinator) -> None:
    provider, bash = MockProvider(), MockTool("bash")
    await coordinator.mount("providers", provider, name="anthropic")
    await coordinator.mount("tools", bash)

    orchestrator = coordinator.get("orchestrator")
    context = coordinator.get("context")
    hooks = coordinator.get("hooks")

    all_providers = coordinator.get("providers")
    all_tools = coordinator.get("tools")

    anthropic = coordinator.get("providers", "anthropic")
    bash_tool = coordinator.get("tools", "bash")

    assert coordinator.get("providers", "openai") is None
    assert orchestrator is None
    assert context is None
    assert hooks is coordinator.hooks
    assert all_providers == {"anthropic": provider}
    assert all_tools == {"bash": bash}
    assert anthropic is provider
    assert bash_tool is bash
    with pytest.raises(ValueError, match="Unknown mount point"):
        coordinator.get("category")  # type: ignore[call-overload]  # a type error, too


async def test_get_follows_the_documented_types() -> None:
    coordinator = create_test_coordinator()
    await coordinator.mount("orchestrator", ScriptedOrchestrator([]))
    await coordinator.mount("providers", MockProvider(), name="anthropic")

    orchestrator: Orchestrator | None = coordinator.get("orchestrator")

    providers: dict[str, Provider] = coordinator.get("providers")

    provider: Provider | None = coordinator.get("providers", "anthropic")

    assert isinstance(orchestrator, Orchestrator)
    assert isinstance(providers, dict)
    assert isinstance(provider, Provider)


# ── register_cleanup and cleanup ──


async def test_cleanups_may_be_sync_or_async(caplog: pytest.LogCaptureFixture, coordinator: TestCoordinator) -> None:
    connection = MyTool()

    def cleanup_sync():
        logger.info("Cleaning up sync resources")

    coordinator.register_cleanup(cleanup_sync)

    async def cleanup_async():
        await connection.shutdown()  # the document's connection has a close() instead
        logger.info("Cleaned up async resources")

    coordinator.register_cleanup(cleanup_async)

    with caplog.at_level(logging.INFO, logger="seeds"):
        await coordinator.cleanup()
    assert caplog.messages == ["Cleaned up async resources", "Cleaning up sync resources"]
    assert not connection.is_open


async def test_cleanups_run_in_reverse_order(coordinator: TestCoordinator) -> None:
    order: list[str] = []

    def cleanup_a() -> None:
        order.append("a")

    async def cleanup_b() -> None:
        order.append("b")

    def cleanup_c() -> None:
        order.append("c")

    coordinator.register_cleanup(cleanup_a)
    coordinator.register_cleanup(cleanup_b)
    coordinator.register_cleanup(cleanup_c)

    await coordinator.cleanup()
    assert order == ["c", "b", "a"]


async def test_a_failing_cleanup_is_logged_and_the_others_run(
    coordinator: TestCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    async def broken() -> None:
        raise OSError("already closed")

    coordinator.register_cleanup(lambda: ran.append("first"))
    coordinator.register_cleanup(broken)
    coordinator.register_cleanup(lambda: ran.append("last"))
    with caplog.at_level(logging.WARNING, logger="amplifier"):
        await coordinator.cleanup()
    assert ran == ["last", "first"]
    assert "already closed" in caplog.text


async def test_leaving_the_session_cleans_up(seed_plan: dict[str, Any]) -> None:
    config = seed_plan
    ran: list[str] = []

    async with AmplifierSession(config) as session:
        session.coordinator.register_cleanup(lambda: ran.append("cleanup"))
        await session.execute("Do work")
        assert ran == []
    assert ran == ["cleanup"]

    coordinator = session.coordinator
    await coordinator.cleanup()
    assert ran == ["cleanup"]


async def test_the_common_pattern_returns_its_cleanup_from_mount() -> None:
    tools: list[MyTool] = []

    async def mount(coordinator, config):
        tool = MyTool()
        await coordinator.mount("tools", tool, name="my-tool")

        async def cleanup():
            await tool.shutdown()

        coordinator.register_cleanup(cleanup)
        tools.append(tool)
        return cleanup

    async with seed_session(tools={"tool-mine": mount}):
        assert tools[0].is_open
    assert not tools[0].is_open


# ── capabilities ──


async def test_capabilities_are_functions_or_data(coordinator: TestCoordinator) -> None:
    async def list_agents():
        return ["researcher", "coder", "reviewer"]

    async def get_agent_config(agent_id: str) -> dict[str, Any]:
        return {"id": agent_id}

    async def spawn_agent(agent_id: str, task: str) -> str:
        return f"{agent_id}: {task}"

    coordinator.register_capability("agents.list", list_agents)

    coordinator.register_capability("agents.list", list_agents)
    coordinator.register_capability("agents.get", get_agent_config)
    coordinator.register_capability("agents.spawn", spawn_agent)

    coordinator.register_capability("workspace.path", "/home/user/project")
    coordinator.register_capability("session.user_id", "user_123")

    assert coordinator.get_capability("agents.get") is get_agent_config
    assert coordinator.get_capability("workspace.path") == "/home/user/project"
    assert coordinator.get_capability("session.user_id") == "user_123"
    assert coordinator.get_capability("agents.unknown") is None


@pytest.mark.parametrize("is_available", [True, False])
async def test_a_capability_is_checked_before_it_is_used(
    coordinator: TestCoordinator, is_available: bool, caplog: pytest.LogCaptureFixture
) -> None:
    spawned: list[tuple[str, str]] = []

    async def list_them() -> list[str]:
        return ["researcher"]

    async def spawn(agent_id: str, task: str) -> None:
        spawned.append((agent_id, task))

    if is_available:
        coordinator.register_capability("agents.list", list_them)
        coordinator.register_capability("agents.spawn", spawn)
        coordinator.register_capability("workspace.path", "/home/user/project")

    with caplog.at_level(logging.INFO, logger="seeds"):
        list_agents = coordinator.get_capability("agents.list")
        if list_agents:
            agents = await list_agents()
            logger.info(f"Available agents: {agents}")
        else:
            logger.info("Agent system not available")

        if coordinator.get_capability("workspace.path"):
            path = coordinator.get_capability("workspace.path")
            logger.info(f"Working in: {path}")

        spawn_agent: Callable | None = coordinator.get_capability("agents.spawn")
        if spawn_agent:
            await spawn_agent("researcher", task="analyze codebase")

    if is_available:
        assert caplog.messages == ["Available agents: ['researcher']", "Working in: /home/user/project"]
        assert spawned == [("researcher", "analyze codebase")]
    else:
        assert caplog.messages == ["Agent system not available"]


# ── contributions ──


async def test_events_are_contributed_and_flattened(coordinator: TestCoordinator) -> None:
    async def contribute_events():
        return ["tool:execute", "tool:complete", "tool:error"]

    coordinator.register_contributor(
        channel="observability.events",
        name="tool-bash",
        callback=contribute_events,
    )
    coordinator.register_contributor("observability.events", "kernel", lambda: ["session:start"])

    events = await coordinator.collect_contributions("observability.events")
    assert events == [["tool:execute", "tool:complete", "tool:error"], ["session:start"]]

    all_events = []
    for contribution in events:
        if isinstance(contribution, list):
            all_events.extend(contribution)
    assert all_events == ["tool:execute", "tool:complete", "tool:error", "session:start"]


async def test_capabilities_are_contributed_and_merged(coordinator: TestCoordinator) -> None:
    def execute_command() -> str:
        return "executed"

    def validate_syntax() -> bool:
        return True

    def contribute_capabilities():
        return {
            "bash.execute": execute_command,
            "bash.validate": validate_syntax,
        }

    coordinator.register_contributor(
        channel="capabilities",
        name="tool-bash",
        callback=contribute_capabilities,
    )
    coordinator.register_contributor("capabilities", "workspace", lambda: {"workspace.path": lambda: "here"})

    capabilities = await coordinator.collect_contributions("capabilities")

    merged = {}
    for contribution in capabilities:
        if isinstance(contribution, dict):
            merged.update(contribution)
    assert list(merged) == ["bash.execute", "bash.validate", "workspace.path"]
    assert merged["bash.execute"]() == "executed"


@pytest.mark.parametrize("enable_metrics", [True, False])
async def test_a_contribution_of_none_is_left_out(coordinator: TestCoordinator, enable_metrics: bool) -> None:
    def get_current_metrics() -> dict[str, int]:
        return {"calls": 3}

    def contribute_metrics():
        if enable_metrics:
            return get_current_metrics()
        return None

    coordinator.register_contributor(
        channel="metrics.snapshot",
        name="my-module",
        callback=contribute_metrics,
    )

    assert await coordinator.collect_contributions("metrics.snapshot") == ([{"calls": 3}] if enable_metrics else [])


# ── reset_turn ──


async def test_reset_turn_begins_a_new_budget(caplog: pytest.LogCaptureFixture) -> None:
    """The document's ``provider.complete(messages)`` passes plain messages; the double takes them, a provider takes a
    ChatRequest.
    """
    coordinator = TestCoordinator(
        config={"session": {"orchestrator": "loop-x", "context": "context-x", "injection_budget_per_turn": 3}}
    )
    context, provider = MockContextManager(), MockProvider()
    await coordinator.mount("context", context)
    injection_result = HookResult(action="inject_context", context_injection="eight ch")

    async def execute_turn(prompt):
        coordinator.reset_turn()

        messages = await context.get_messages()
        response = await provider.complete(messages)  # type: ignore[arg-type]  # as the document has it

        await coordinator.process_hook_result(injection_result, "tool:post", "linter")
        return response

    with caplog.at_level(logging.WARNING, logger="amplifier"):
        for _ in range(3):
            await execute_turn("again")
            assert coordinator._current_turn_injections == 2
        assert caplog.messages == []
        await coordinator.process_hook_result(injection_result, "tool:post", "linter")
    assert coordinator._current_turn_injections == 4
    assert "injection_budget_per_turn" in caplog.text
