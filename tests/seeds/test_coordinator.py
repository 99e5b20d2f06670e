"""Coordinator API: the signatures, the properties, and the snippets that show more than one method does.

What each method does by itself is in `tests/kernel/coordinator` and `tests/kernel/hooks`.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from amplifier import AmplifierSession, ModuleCoordinator, ModuleLoader
from amplifier.plan import parse_plan
from amplifier.testing import EventRecorder, MockContextManager, MockTool, TestCoordinator
from tests._support.seed_sessions import seed_session

PROPERTIES = ["session", "session_id", "parent_id", "config", "loader", "hooks", "mount_points"]

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


async def test_mount_returns_none_and_works_without_await() -> None:
    """One snippet of the module source document mounts without ``await``; both forms work (decided, DESIGN 6)."""
    coordinator = ModuleCoordinator()
    assert await coordinator.mount("context", MockContextManager()) is None  # type: ignore[func-returns-value]  # that is the point
    resolver: Any = object()
    coordinator.mount("module-source-resolver", resolver)  # type: ignore[unused-awaitable]  # as the document has it
    assert coordinator.get("module-source-resolver") is resolver


async def test_unmounting_runs_no_cleanup() -> None:
    coordinator = TestCoordinator()
    ran: list[str] = []
    await coordinator.mount("tools", MyTool())
    coordinator.register_cleanup(lambda: ran.append("cleanup"))
    await coordinator.unmount("tools", "my-tool")
    assert ran == []
    await coordinator.cleanup()
    assert ran == ["cleanup"]


@pytest.mark.parametrize("name", PROPERTIES)
async def test_every_property_of_the_table_is_there_for_the_session_and_for_modules(name: str) -> None:
    views: list[Any] = []

    async def mount(coordinator, config):
        views.append(coordinator)

    async with seed_session(tools={"tool-mine": mount}) as session:
        getattr(session.coordinator, name)
        getattr(views[0], name)


async def test_session_spawns_a_child_session(seed_plan: dict[str, Any]) -> None:
    async def delegate_task(coordinator, task):
        parent_session = coordinator.session

        child_config = parent_session._merge_configs(
            parent_session.config,
            {"agents": {"researcher": {"max_iterations": 5}}},
        )

        child_session = AmplifierSession(
            config=child_config,
            parent_id=coordinator.session_id,
        )

        async with child_session as session:
            assert session.config["agents"] == {"researcher": {"max_iterations": 5}}
            return await session.execute(task)

    async with AmplifierSession(seed_plan, session_id="parent") as session:
        assert isinstance(session.coordinator.session, AmplifierSession)
        answer = await delegate_task(session.coordinator, "look it up")
    assert answer.startswith("look it up, by ")
    assert answer.endswith(" under parent")
    assert "agents" not in seed_plan


async def test_a_child_emits_session_fork_and_all_its_events_carry_both_ids() -> None:
    recorder = EventRecorder()

    async def mount(coordinator, config):
        recorder.listen(coordinator.hooks)

    async with seed_session(hooks={"hooks-x": mount}, session_id="child", parent_id="parent") as session:
        await session.execute("hello")
    assert "session:fork" in recorder.names()
    assert recorder.names().index("session:fork") < recorder.names().index("session:start")
    assert {(data["session_id"], data["parent_id"]) for _, data in recorder.events} == {("child", "parent")}


def test_the_structure_of_a_configuration_is_a_valid_plan() -> None:
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


async def test_loader_loads_a_module_at_run_time() -> None:
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

    session = seed_session(tools={"tool-mine": mount}, configs={"tool-mine": {"dynamic_tool": "tool-dynamic"}})
    session.loader.register("tool-dynamic", mount_dynamic)
    async with session:
        assert isinstance(session.coordinator.loader, ModuleLoader)
        assert "dynamic" in session.coordinator.get("tools")
        assert cleaned == []
    assert cleaned == ["dynamic"]
