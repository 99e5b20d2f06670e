"""Follows a log file for a moment and returns the new lines.

Fault: the pipeline runs below a shell, and when the time is over (or the call is cancelled) only the shell is killed; `tail -f`
goes on for ever.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class FollowLogTool:
    name = "follow_log"
    description = "Waits up to some seconds for new lines of the application's log and returns them."

    def __init__(self, path: Path, limit: float) -> None:
        self._path = path
        self._limit = limit

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "lines": {"type": "integer", "minimum": 1, "maximum": 100, "default": 3},
                "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 0.2},
            },
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        lines, seconds = input.get("lines", 3), input.get("seconds", 0.2)
        if isinstance(lines, bool) or not isinstance(lines, int) or not 1 <= lines <= 100:
            return ToolResult(success=False, error={"message": "lines: expected a whole number from 1 to 100"})
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 5:
            return ToolResult(success=False, error={"message": "seconds: expected a number up to 5"})
        found = self._path.with_suffix(".seen")
        quoted, out = shlex.quote(str(self._path)), shlex.quote(str(found))
        command = f"tail -n {lines} -f {quoted} 2>/dev/null | head -n {lines} > {out}; true"
        with anyio.move_on_after(min(seconds, self._limit)):
            await anyio.run_process(["/bin/sh", "-c", command], check=False, stdin=None)
        try:
            text = await anyio.Path(found).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            text = ""
        return ToolResult(success=True, output={"lines": text.splitlines()})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    config = config or {}
    path = Path(config.get("path") or Path.home() / "application.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    await coordinator.mount("tools", FollowLogTool(path, float(config.get("limit", 5))))
