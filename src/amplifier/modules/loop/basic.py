"""loop-basic: ask the model, run its tools, repeat; answers arrive whole."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import Coordinator

from . import TurnOrchestrator, mount_loop, read_options

__all__ = ["BasicLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class BasicLoop(TurnOrchestrator):
    """The plain agent loop; it collects what `loop-streaming` passes on piece by piece."""


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the loop; see `TurnOptions` for its configuration."""
    await mount_loop(coordinator, BasicLoop(read_options("loop-basic", config)))
