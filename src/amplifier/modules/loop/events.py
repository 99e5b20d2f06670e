"""loop-events: the plain loop, with hooks choosing the tool for every call (``tool:selecting``, ``tool:selected``)."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import Coordinator

from . import TurnOrchestrator, mount_loop, read_options

__all__ = ["EventLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class EventLoop(TurnOrchestrator):
    """The event-driven loop: a hook may answer ``tool:selecting`` with `modify` and another ``tool_name``."""


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the loop; see `TurnOptions` for its configuration."""
    await mount_loop(coordinator, EventLoop(read_options("loop-events", config, select_tools=True)))
    coordinator.register_contributor(
        "observability.events", "loop-events", lambda: ["tool:selecting", "tool:selected"]
    )
