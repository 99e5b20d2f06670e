"""Type-checked only, by mypy and pyright: handlers with typed payloads can be registered."""

from __future__ import annotations

from typing import Any, assert_type

from amplifier import HookRegistry, HookResult
from amplifier.contracts import Coordinator, HookHandler
from amplifier.events.payloads import CancelRequestedPayload, EventPayload, ToolPrePayload


async def before_a_tool(event: str, data: ToolPrePayload) -> HookResult:
    """Read some keys."""
    assert_type(data.get("tool_name"), str | None)
    assert_type(data.get("tool_input"), dict[str, Any] | None)
    assert_type(data.get("session_id"), str | None)
    return HookResult()


def on_cancel(event: str, data: CancelRequestedPayload) -> None:
    """A plain function is a handler, too."""
    if data.get("state") == "immediate":
        return


async def untyped(event: str, data: dict[str, Any]) -> HookResult:
    """The contract's own form."""
    return HookResult()


async def any_event(event: str, data: EventPayload) -> HookResult:
    """What every payload has."""
    assert_type(data.get("parent_id"), str | None)
    return HookResult()


def register(coordinator: Coordinator, registry: HookRegistry) -> HookHandler:
    """Each form is accepted, by the Protocol and by the kernel."""
    for hooks in (coordinator.hooks, registry):
        hooks.register("tool:pre", before_a_tool, on_failure="deny")
        hooks.register("cancel:requested", on_cancel)
        hooks.register("*", any_event)
        hooks.on("tool:post", untyped)
    return untyped
