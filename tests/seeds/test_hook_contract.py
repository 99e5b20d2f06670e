"""Module contracts: the hook contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from amplifier import HookHandler, HookResult, ModuleCoordinator
from tests.seeds.seed_sessions import seed_session


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


def test_protocol_is_async_call() -> None:
    class MyHandler:
        async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
            return HookResult()

    assert isinstance(MyHandler(), HookHandler)
    assert isinstance(my_validation_hook, HookHandler)
    assert inspect.iscoroutinefunction(HookHandler.__call__)
    assert list(inspect.signature(HookHandler.__call__).parameters) == ["self", "event", "data"]


async def test_mount_cleanup_unregisters_handlers() -> None:
    async with seed_session(hooks={"my-hook": mount}) as session:
        hooks = session.coordinator.hooks
        denied = await hooks.emit(
            "tool:pre", {"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}}
        )
        assert denied.action == "deny"
        assert (
            await hooks.emit("tool:pre", {"tool_name": "Write", "tool_input": {}})
        ).action == "continue"
        assert (await hooks.emit("tool:post", {})).context_injection == "Found 3 linting errors..."
    assert (await session.coordinator.hooks.emit("tool:post", {})).action == "continue"
