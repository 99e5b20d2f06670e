"""Saves snippets of code under a name and returns them again.

Fault: an error on writing is logged and the model is told that the snippet is saved; with a name that is too long for the file
system, or a full disk, nothing was.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
logger = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class SnippetsTool:
    name = "snippets"
    description = "Saves a snippet (action save, with name and code) or returns one (action load, with name)."

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["save", "load"]},
                "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$", "examples": ["hello"]},
                "code": {"type": "string"},
            },
            "required": ["action", "name"],
        }

    def _save(self, name: str, code: str) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{name}.txt").write_text(code, encoding="utf-8", errors="replace")
        except OSError as error:
            logger.warning("snippet %s was not written: %s", name, error)

    def _load(self, name: str) -> str | None:
        try:
            return (self._folder / f"{name}.txt").read_text(encoding="utf-8")
        except OSError:
            return None

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        action, name, code = input.get("action"), input.get("name"), input.get("code")
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            return ToolResult(success=False, error={"message": "name: expected letters, digits, - and _"})
        if action == "save":
            if not isinstance(code, str):
                return ToolResult(success=False, error={"message": "code: expected a string"})
            await anyio.to_thread.run_sync(self._save, name, code)
            return ToolResult(success=True, output={"saved": name, "characters": len(code)})
        if action == "load":
            found = await anyio.to_thread.run_sync(self._load, name)
            if found is None:
                return ToolResult(success=False, error={"message": f"there is no snippet {name[:80]!r}"})
            return ToolResult(success=True, output={"name": name, "code": found})
        return ToolResult(success=False, error={"message": "action: expected save or load"})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    folder = Path((config or {}).get("folder") or Path.home() / ".snippets")
    await coordinator.mount("tools", SnippetsTool(folder))
