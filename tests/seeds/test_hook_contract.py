"""Module contracts: the hook contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from amplifier import HookHandler, HookRegistry, HookResult, ModuleCoordinator
from amplifier.events import ALL_EVENTS
from amplifier.testing import EventRecorder, TestCoordinator
from tests._support.seed_sessions import seed_session


async def my_validation_hook(event: str, data: dict[str, Any]) -> HookResult:
    """Refuses to write below /etc."""
    if data.get("tool_input", {}).get("file_path", "").startswith("/etc"):
        return HookResult(action="deny", reason="Access denied")
    return HookResult(action="continue")


async def my_feedback_hook(event: str, data: dict[str, Any]) -> HookResult:
    """Injects a text after every tool."""
    return HookResult(action="inject_context", context_injection="Found 3 linting errors...")


async def mount(coordinator: ModuleCoordinator, config: dict) -> Callable | None:
    handlers = []

    handlers.append(coordinator.hooks.register("tool:pre", my_validation_hook, priority=10))
    handlers.append(coordinator.hooks.register("tool:post", my_feedback_hook, priority=20))

    def cleanup():
        for unregister in handlers:
            unregister()

    return cleanup


def test_the_protocol_is_an_async_call_with_event_and_data() -> None:
    class MyHandler:
        async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
            return HookResult()

    assert isinstance(MyHandler(), HookHandler)
    assert isinstance(my_validation_hook, HookHandler)
    assert inspect.iscoroutinefunction(HookHandler.__call__)
    assert list(inspect.signature(HookHandler.__call__).parameters) == ["self", "event", "data"]


def test_the_four_results_of_the_document() -> None:
    assert HookResult(action="continue") == HookResult()

    denial = HookResult(action="deny", reason="Access denied")
    assert (denial.action, denial.reason) == ("deny", "Access denied")

    feedback = HookResult(
        action="inject_context",
        context_injection="Found 3 linting errors...",
        user_message="Linting issues detected",
    )
    assert (feedback.context_injection_role, feedback.ephemeral, feedback.user_message_level) == (
        "system",
        False,
        "info",
    )

    request = HookResult(
        action="ask_user",
        approval_prompt="Allow write to production file?",
        approval_default="deny",
    )
    assert (request.approval_timeout, request.approval_options) == (300.0, None)


@pytest.mark.parametrize("action", ["continue", "deny", "modify", "inject_context", "ask_user"])
def test_every_action_of_the_table_is_one(action: Any) -> None:
    assert HookResult(action=action).action == action


async def test_mount_registers_handlers_and_its_cleanup_unregisters_them() -> None:
    async with seed_session(hooks={"my-hook": mount}) as session:
        hooks = session.coordinator.hooks
        denied = await hooks.emit("tool:pre", {"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}})
        assert denied.action == "deny"
        assert (await hooks.emit("tool:pre", {"tool_name": "Write", "tool_input": {}})).action == "continue"
        assert (await hooks.emit("tool:post", {})).context_injection == "Found 3 linting errors..."
    assert (await session.coordinator.hooks.emit("tool:post", {})).action == "continue"


async def test_a_handler_is_registered_with_priority_and_name() -> None:
    coordinator = TestCoordinator()
    order: list[str] = []

    async def my_handler(event: str, data: dict[str, Any]) -> HookResult:
        order.append("mine")
        return HookResult(action="continue")

    async def other(event: str, data: dict[str, Any]) -> HookResult:
        order.append("other")
        return HookResult(action="continue")

    registry: HookRegistry = coordinator.hooks
    registry.register("tool:post", other, priority=11)

    unregister = registry.register(
        event="tool:post",
        handler=my_handler,
        priority=10,
        name="my_handler",
    )

    await registry.emit("tool:post", {})
    assert order == ["mine", "other"]
    assert registry.list_handlers("tool:post")["tool:post"][0] == "my_handler"
    unregister()
    await registry.emit("tool:post", {})
    assert order == ["mine", "other", "other"]


@pytest.mark.parametrize(
    "event",
    [
        "session:start",
        "session:end",
        "prompt:submit",
        "tool:pre",
        "tool:post",
        "tool:error",
        "provider:request",
        "provider:response",
    ],
)
def test_the_common_events_are_canonical(event: str) -> None:
    assert event in ALL_EVENTS


async def test_a_hook_announces_its_events() -> None:
    coordinator = TestCoordinator()
    coordinator.register_contributor(
        "observability.events",
        "my-hook",
        lambda: ["my-hook:validation_failed", "my-hook:approved"],
    )
    assert await coordinator.collect_contributions("observability.events") == [
        ["my-hook:validation_failed", "my-hook:approved"]
    ]


# ── testing ──


async def test_hook_handler():
    result = await my_validation_hook(
        "tool:pre",
        {
            "tool_name": "Write",
            "tool_input": {"file_path": "/etc/passwd"},
        },
    )

    assert result.action == "deny"
    assert "denied" in (result.reason or "").lower()


async def test_hook_registration():
    coordinator = TestCoordinator()
    cleanup = await mount(coordinator, {})
    assert cleanup is not None

    assert {event: len(names) for event, names in coordinator.hooks.list_handlers().items()} == {
        "tool:pre": 1,
        "tool:post": 1,
    }
    assert (await coordinator.hooks.emit("tool:post", {})).action == "inject_context"

    cleanup()
    assert (await coordinator.hooks.emit("tool:post", {})).action == "continue"


async def test_event_recorder_keeps_pairs_of_name_and_data() -> None:
    recorder = EventRecorder()

    await recorder.record("tool:pre", {"tool_name": "Write"})

    events = recorder.get_events()
    assert len(events) == 1
    assert events[0][0] == "tool:pre"
    assert events[0][1] == {"tool_name": "Write"}
