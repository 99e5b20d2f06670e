"""Notes that survive the session: a tool with a small JSON file behind it.

Fault: an update reads the file, awaits, and writes the whole file back without a lock; of two calls at the same time the later
write removes the note of the other, though both reported success.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


def _load(path: Path) -> dict[str, str]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _store(path: Path, notes: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{id(notes)}.tmp")
    fresh.write_text(json.dumps(notes), encoding="utf-8")
    os.replace(fresh, path)


class NotesTool:
    """Keeps notes by title."""

    name = "notes"
    description = "Keeps short notes. action is add (with title and text), get (with title) or list."

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["add", "get", "list"]},
                "title": {"type": "string"},
                "text": {"type": "string"},
            },
            "required": ["action"],
            "examples": [{"action": "add", "title": "todo", "text": "buy milk"}, {"action": "list"}],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        action, title, text = input.get("action"), input.get("title"), input.get("text")
        notes = await anyio.to_thread.run_sync(_load, self._path)
        if action == "list":
            return ToolResult(success=True, output={"titles": sorted(notes)})
        if not isinstance(title, str) or not title:
            return ToolResult(success=False, error={"message": "title: expected a non-empty string"})
        if action == "get":
            if title not in notes:
                return ToolResult(success=False, error={"message": f"there is no note {title!r}"})
            return ToolResult(success=True, output={"title": title, "text": notes[title]})
        if action == "add":
            if not isinstance(text, str):
                return ToolResult(success=False, error={"message": "text: expected a string"})
            notes[title] = text
            await anyio.to_thread.run_sync(_store, self._path, notes)
            return ToolResult(success=True, output={"saved": title, "count": len(notes)})
        return ToolResult(success=False, error={"message": "action: expected add, get or list"})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    path = Path((config or {}).get("path") or Path.home() / ".notes" / "notes.json")
    await coordinator.mount("tools", NotesTool(path))
