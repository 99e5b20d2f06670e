"""Module contracts: the hook contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier import HookResult, ModuleCoordinator
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


async def test_mount_registers_handlers_and_its_cleanup_unregisters_them() -> None:
    async with seed_session(hooks={"my-hook": mount}) as session:
        hooks = session.coordinator.hooks
        denied = await hooks.emit("tool:pre", {"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}})
        assert denied.action == "deny"
        assert (await hooks.emit("tool:pre", {"tool_name": "Write", "tool_input": {}})).action == "continue"
        assert (await hooks.emit("tool:post", {})).context_injection == "Found 3 linting errors..."
    assert (await session.coordinator.hooks.emit("tool:post", {})).action == "continue"


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
