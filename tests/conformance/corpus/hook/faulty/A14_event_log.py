"""Writes a line to a log file for every tool call, through the logging package.

Fault: the handler is attached to the logger of the whole process and the cleanup only unregisters the hook; each session adds
another handler with an open file, and in the next session every line is written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier import HookResult

__amplifier_module_type__ = "hook"
logger = logging.getLogger("tool_calls")


def describe(event: str, data: dict[str, Any]) -> str:
    name = data.get("tool_name")
    call = data.get("tool_call_id")
    return f"{event} {name if isinstance(name, str) else '?'} {call if isinstance(call, str) else '-'}"


async def on_tool(event: str, data: dict[str, Any]) -> HookResult:
    logger.info("%s", describe(event, data))
    return HookResult(action="continue")


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> Callable[[], None]:
    config = config or {}
    path = Path(config.get("path") or Path.home() / "tool_calls.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    events = ["tool:pre", "tool:post", "tool:error"]
    undo = [coordinator.hooks.register(event, on_tool, priority=900, name="event-log") for event in events]

    def cleanup() -> None:
        for each in undo:
            each()

    return cleanup
