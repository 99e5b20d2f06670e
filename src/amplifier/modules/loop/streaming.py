"""loop-streaming: the plain loop, which passes on each piece of an answer as it arrives."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import Coordinator

from . import TurnOrchestrator, mount_loop, read_options

__all__ = ["StreamingLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class StreamingLoop(TurnOrchestrator):
    """The agent loop that streams answers. A provider that can't stream is called as usual."""


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the loop. See `TurnOptions` for its configuration."""
    await mount_loop(
        coordinator, StreamingLoop(read_options("loop-streaming", config, streaming=True))
    )
