"""TestCoordinator: a real coordinator without a session."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import ContextManager, Coordinator
from amplifier.kernel import AmplifierSession, ModuleCoordinator
from amplifier.models import HookResult
from amplifier.testing import (
    MockContextManager,
    MockCoordinator,
    MockTool,
    ScriptedOrchestrator,
    TestCoordinator,
    create_test_coordinator,
)


def test_it_needs_no_arguments_and_is_a_real_coordinator() -> None:
    coordinator = TestCoordinator()
    assert isinstance(coordinator, ModuleCoordinator)
    assert isinstance(coordinator, Coordinator)
    assert coordinator.session_id == coordinator.session.session_id == "test-session"
    assert coordinator.parent_id is None
    assert coordinator.session.coordinator is coordinator
    assert MockCoordinator is TestCoordinator


def test_its_plan_is_one_a_session_accepts_and_its_own() -> None:
    first, second = TestCoordinator(), TestCoordinator()
    assert AmplifierSession(first.config).config is first.config
    first.config["session"]["strict"] = True
    assert "strict" not in second.config["session"]


async def test_it_remembers_what_was_mounted_and_unmounted() -> None:
    coordinator, tool = TestCoordinator(), MockTool()
    await coordinator.mount("tools", tool, name="mine")
    await coordinator.mount("tools", tool)
    await coordinator.unmount("tools", name="mine")
    assert coordinator.mount_history == [
        {"mount_point": "tools", "module": tool, "name": "mine"},
        {"mount_point": "tools", "module": tool, "name": None},
    ]
    assert coordinator.unmount_history == [{"mount_point": "tools", "name": "mine"}]
    assert coordinator.get("tools") == {"mock_tool": tool}


async def test_a_module_can_be_given_its_own_view_of_it() -> None:
    coordinator, tool = TestCoordinator(), MockTool("mine")
    view = coordinator.view_for("tool-mine")
    await view.mount("tools", tool)
    await view.unmount("tools", "mine")
    assert view.module_id == "tool-mine"
    assert coordinator.mount_history == [{"mount_point": "tools", "module": tool, "name": None}]
    assert coordinator.unmount_history == [{"mount_point": "tools", "name": "mine"}]


async def test_its_display_remembers_and_its_approval_fails_closed() -> None:
    coordinator = TestCoordinator()
    await coordinator.process_hook_result(HookResult(user_message="hello"), "tool:pre", "greeter")
    assert coordinator.display_system.messages == [("hello", "info", "hook:greeter")]
    answer = await coordinator.process_hook_result(HookResult(action="ask_user", approval_prompt="Sure?"), "tool:pre")
    assert answer.action == "deny"
    assert coordinator.approval_system.requests[0]["prompt"] == "Sure?"


async def test_its_loader_knows_the_modules_it_was_given_and_its_session_forks() -> None:
    async def mount_loop(coordinator: Any, config: dict[str, Any]) -> ScriptedOrchestrator:
        return ScriptedOrchestrator(["from the child"])

    async def mount_context(coordinator: Any, config: dict[str, Any]) -> MockContextManager:
        return MockContextManager()

    parent = TestCoordinator(modules={"loop-test": mount_loop, "context-test": mount_context})
    assert (await parent.loader.load("loop-test")).mount is mount_loop
    assert parent.session._merge_configs({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    child = parent.session.fork({"session": {"metadata": {"agent": "x"}}})
    assert child.parent_id == "test-session"
    assert child.config["session"]["metadata"] == {"agent": "x"}
    async with child:
        assert await child.execute("go") == "from the child"


async def test_a_furnished_one_has_two_tools_and_a_context() -> None:
    coordinator = create_test_coordinator()
    assert list(coordinator.get_mounted("tools")) == ["echo", "fail"]
    assert isinstance(coordinator.get("context"), ContextManager)
    echo, fail = coordinator.get("tools", "echo"), coordinator.get("tools", "fail")
    assert (await echo.execute({"text": "hi"})).output == "hi"
    assert (await echo.execute({})).output == "Echo response"
    assert not (await fail.execute({})).success
    assert coordinator.mount_history == []
