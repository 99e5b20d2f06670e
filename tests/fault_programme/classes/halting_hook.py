"""A hook module that halts a process at its n-th event until it is told to go on: a moment that does not depend on speed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio

__amplifier_module_type__ = "hook"

REACHED = "reached"
GO_ON = "go-on"
EVENTS = "events"


async def mount(coordinator: Any, config: dict[str, Any]) -> None:
    """Count events, write their names into ``folder`` and halt at number ``at``; 0 never halts."""
    folder, at = Path(config["folder"]), config["at"]
    seen = 0

    async def halt(event: str, data: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        number = seen
        log = os.open(folder / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(log, f"{event}\n".encode())
        os.close(log)
        if number == at:
            (folder / REACHED).touch()
            while not (folder / GO_ON).exists():  # noqa: ASYNC110  # another process makes it
                await anyio.sleep(0.01)

    coordinator.hooks.register("*", halt, priority=-1000, name="halting")
