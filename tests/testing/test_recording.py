"""Doubles that answer and remember: MockTool, MockContextManager, EventRecorder, and TestCoordinator without a session."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.contracts import ContextManager, Coordinator, tool_schema
from amplifier.kernel import AmplifierSession, HookRegistry, ModuleCoordinator
from amplifier.models import HookResult, ToolResult
from amplifier.testing import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockTool,
    ScriptedOrchestrator,
    TestCoordinator,
    create_test_coordinator,
)


@pytest.mark.parametrize("argument", ["return_value", "output"])
@pytest.mark.parametrize("value", ["text", None, {"rows": [1, 2]}, 0])
async def test_output_under_either_name(argument: str, value: Any) -> None:
    tool = MockTool(**{argument: value})
    assert await tool.execute({}) == ToolResult(success=True, output=value)


async def test_output_may_depend_on_input() -> None:
    async def later(given: dict[str, Any]) -> str:
        return f"later {given['x']}"

    assert (await MockTool(respond=lambda given: given["x"] * 2).execute({"x": 21})).output == 42
    assert (await MockTool(respond=later).execute({"x": 1})).output == "later 1"
    refused = ToolResult(success=False, error={"message": "odd"})
    assert await MockTool(respond=lambda given: refused).execute({}) == refused


@pytest.mark.parametrize("error", ["broken", {"message": "broken", "type": "IOError"}])
async def test_error_is_failed_result(error: Any) -> None:
    result = await MockTool(error=error).execute({})
    assert not result.success
    assert result.error is not None
    assert result.error["message"] == "broken"


@pytest.mark.parametrize("raises", [RuntimeError("boom"), RuntimeError])
async def test_tool_can_raise_against_contract(raises: Any) -> None:
    tool = MockTool(raises=raises)
    with pytest.raises(RuntimeError):
        await tool.execute({})
    assert tool.call_count == 1


def test_two_answers_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="'mock_tool' got output, error; expected one answer"):
        MockTool(output="x", error="y")


async def test_calls_are_remembered_as_they_were_made() -> None:
    tool = MockTool()
    assert tool.call_count == 0
    assert tool.last_input is None
    given = {"path": ["a"]}
    await tool.execute(given)
    given["path"].append("b")
    await tool.execute(given)
    assert tool.call_count == 2
    assert tool.calls == [{"path": ["a"]}, {"path": ["a", "b"]}]
    assert tool.last_input == {"path": ["a", "b"]}
    assert repr(tool) == "<MockTool 'mock_tool' called 2 times>"


def test_schema_is_any_object_by_default() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    assert tool_schema(MockTool()) == {"type": "object", "properties": {}}
    tool = MockTool(schema=schema)
    assert tool_schema(tool) == tool.get_schema() == tool.input_schema == schema
    tool.get_schema()["properties"]["x"] = "changed"
    assert tool.get_schema() == schema


async def test_nothing_given_or_returned_is_shared() -> None:
    first = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    context = MockContextManager([first])
    await context.add_message(first)
    await context.set_messages([first])
    (await context.get_messages())[0]["content"].append("changed")
    (await context.get_messages_for_request())[0]["content"].append("changed")
    first["content"] = "changed"
    assert context.messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


async def test_set_messages_and_clear_replace_everything() -> None:
    context = MockContextManager([{"role": "user", "content": "old"}])
    held = context.messages
    await context.set_messages(
        [{"role": "user", "content": "new"}, {"role": "assistant", "content": None}]
    )
    assert [message["content"] for message in context.messages] == ["new", None]
    await context.clear()
    assert await context.get_messages() == []
    assert held is context.messages


async def test_message_without_role_is_not_stored() -> None:
    context = MockContextManager([{"role": "user", "content": "old"}])
    with pytest.raises(
        ValueError, match=r"needs a 'role' such as 'user'; got the keys \['content'\]"
    ):
        await context.add_message({"content": "x"})
    with pytest.raises(ValueError, match="role"):
        await context.set_messages([{"role": "user", "content": "new"}, {"content": "x"}])
    assert context.messages == [{"role": "user", "content": "old"}]


async def test_requests_are_remembered_with_their_arguments() -> None:
    context, provider = MockContextManager(), object()
    await context.get_messages_for_request()
    await context.get_messages_for_request(token_budget=5, provider=provider)
    assert context.requests == [
        {"token_budget": None, "provider": None},
        {"token_budget": 5, "provider": provider},
    ]
    assert repr(context) == "<MockContextManager with 0 messages>"


async def test_recorder_keeps_events_and_passes_all() -> None:
    recorder = EventRecorder()
    assert await recorder.record("tool:pre", {"tool_name": "Write"}) == HookResult(
        action="continue", data={"tool_name": "Write"}
    )
    await recorder.emit("tool:post", {"tool_name": "Write"})
    await recorder("tool:error", {})
    await recorder.emit("session:end")
    assert recorder.names() == ["tool:pre", "tool:post", "tool:error", "session:end"]
    assert recorder.get_events("tool:post") == [("tool:post", {"tool_name": "Write"})]
    assert recorder.get_events() == recorder.events
    assert recorder.get_events() is not recorder.events
    assert recorder.get_events("never") == []
    assert repr(recorder) == "<EventRecorder 4 events>"
    recorder.clear()
    assert recorder.events == []


async def test_payloads_are_copies() -> None:
    recorder, data = EventRecorder(), {"list": [1]}
    result = await recorder.record("x", data)
    data["list"].append(2)
    assert result.data is not None
    result.data["list"].append(3)
    assert recorder.events == [("x", {"list": [1]})]


async def test_recorder_follows_registry_until_removed() -> None:
    hooks, everything, tools_only = HookRegistry(), EventRecorder(), EventRecorder()
    stop = everything.listen(hooks)
    tools_only.listen(hooks, "tool:pre")
    await hooks.emit("tool:pre", {"n": 1})
    await hooks.emit("tool:post", {"n": 2})
    stop()
    await hooks.emit("tool:pre", {"n": 3})
    assert [(event, data["n"]) for event, data in everything.events] == [
        ("tool:pre", 1),
        ("tool:post", 2),
    ]
    assert [data["n"] for _, data in tools_only.events] == [1, 3]


def test_coordinator_needs_no_arguments() -> None:
    coordinator = TestCoordinator()
    assert isinstance(coordinator, ModuleCoordinator)
    assert isinstance(coordinator, Coordinator)
    assert coordinator.session_id == coordinator.session.session_id == "test-session"
    assert coordinator.parent_id is None
    assert coordinator.session.coordinator is coordinator
    assert MockCoordinator is TestCoordinator


def test_coordinator_plan_is_valid_and_own() -> None:
    first, second = TestCoordinator(), TestCoordinator()
    assert AmplifierSession(first.config).config is first.config
    first.config["session"]["strict"] = True
    assert "strict" not in second.config["session"]


async def test_coordinator_remembers_mounts() -> None:
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


async def test_coordinator_view_for_module() -> None:
    coordinator, tool = TestCoordinator(), MockTool("mine")
    view = coordinator.view_for("tool-mine")
    await view.mount("tools", tool)
    await view.unmount("tools", "mine")
    assert view.module_id == "tool-mine"
    assert coordinator.mount_history == [{"mount_point": "tools", "module": tool, "name": None}]
    assert coordinator.unmount_history == [{"mount_point": "tools", "name": "mine"}]


async def test_display_remembers_and_approval_fails_closed() -> None:
    coordinator = TestCoordinator()
    await coordinator.process_hook_result(HookResult(user_message="hello"), "tool:pre", "greeter")
    assert coordinator.display_system.messages == [("hello", "info", "hook:greeter")]
    answer = await coordinator.process_hook_result(
        HookResult(action="ask_user", approval_prompt="Sure?"), "tool:pre"
    )
    assert answer.action == "deny"
    assert coordinator.approval_system.requests[0]["prompt"] == "Sure?"


async def test_loader_has_given_modules() -> None:
    """Its session forks."""

    async def mount_loop(coordinator: Any, config: dict[str, Any]) -> ScriptedOrchestrator:
        return ScriptedOrchestrator(["from the child"])

    async def mount_context(coordinator: Any, config: dict[str, Any]) -> MockContextManager:
        return MockContextManager()

    parent = TestCoordinator(modules={"loop-test": mount_loop, "context-test": mount_context})
    assert (await parent.loader.load("loop-test")).mount is mount_loop
    assert parent.session._merge_configs({"a": {"b": 1}}, {"a": {"c": 2}}) == {
        "a": {"b": 1, "c": 2}
    }
    child = parent.session.fork({"session": {"metadata": {"agent": "x"}}})
    assert child.parent_id == "test-session"
    assert child.config["session"]["metadata"] == {"agent": "x"}
    async with child:
        assert await child.execute("go") == "from the child"


async def test_furnished_coordinator_has_tools_and_context() -> None:
    coordinator = create_test_coordinator()
    assert list(coordinator.get_mounted("tools")) == ["echo", "fail"]
    assert isinstance(coordinator.get("context"), ContextManager)
    echo, fail = coordinator.get("tools", "echo"), coordinator.get("tools", "fail")
    assert (await echo.execute({"text": "hi"})).output == "hi"
    assert (await echo.execute({})).output == "Echo response"
    assert not (await fail.execute({})).success
    assert coordinator.mount_history == []
