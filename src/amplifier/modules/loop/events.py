"""loop-events: the plain loop, in which hooks choose the tool of every call."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import Coordinator

from . import TurnOrchestrator, mount_loop, read_options

__all__ = ["EventLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class EventLoop(TurnOrchestrator):
    """The event-driven loop.

    A hook may return "modify" for ``tool:selecting`` with a different ``tool_name``.
    """


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the loop. See `TurnOptions` for its configuration."""
    await mount_loop(coordinator, EventLoop(read_options("loop-events", config, select_tools=True)))
    coordinator.register_contributor(
        "observability.events", "loop-events", lambda: ["tool:selecting", "tool:selected"]
    )
