"""loop-basic: calls the model and runs its tools until it answers. Answers arrive whole."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import Coordinator

from . import TurnOrchestrator, mount_loop, read_options

__all__ = ["BasicLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class BasicLoop(TurnOrchestrator):
    """The plain agent loop, without streaming."""


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the loop. See `TurnOptions` for its configuration."""
    await mount_loop(coordinator, BasicLoop(read_options("loop-basic", config)))
