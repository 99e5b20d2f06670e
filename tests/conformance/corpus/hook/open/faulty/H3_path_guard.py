"""Denies tool calls that name a path outside of the project.

Fault: whatever goes wrong while a call is judged lets the call through; a path that cannot be resolved (a NUL in it, a list in
place of a string) is thereby allowed by a hook that is registered as a gate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier import HookResult

__amplifier_module_type__ = "hook"
logger = logging.getLogger(__name__)
KEYS = ("path", "file_path", "directory")


class PathGuard:
    """Judges the paths among the arguments of a call."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def _is_inside(self, path: str) -> bool:
        return (self._root / path).resolve().is_relative_to(self._root)

    async def on_tool_pre(self, event: str, data: dict[str, Any]) -> HookResult:
        try:
            arguments = data.get("tool_input") or {}
            for key in KEYS:
                if key in arguments and not self._is_inside(arguments[key]):
                    return HookResult(action="deny", reason=f"{key} is outside of the project")
        except Exception as error:
            logger.debug("path guard: %s", error)
        return HookResult(action="continue")


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> Callable[[], None]:
    guard = PathGuard(Path((config or {}).get("root") or Path.cwd()))
    return coordinator.hooks.register("tool:pre", guard.on_tool_pre, priority=5, name="path-guard", on_failure="deny")
