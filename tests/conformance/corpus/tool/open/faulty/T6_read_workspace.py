"""Reads text files of the workspace.

Fault: whether a path is inside the workspace is decided by a prefix of its text, so that a sibling folder whose name begins with
that of the workspace can be read: `../work-secrets/key` from the workspace `work`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
MAX_CHARACTERS = 20_000


class OutsideWorkspace(Exception):
    pass


class ReadWorkspaceTool:
    """Only reads, and only below the root."""

    name = "read_workspace"
    description = "Reads a text file of the workspace; the path is relative to its root."

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "Relative.", "examples": ["README.md"]}},
            "required": ["path"],
        }

    def _locate(self, path: str) -> str:
        full = os.path.realpath(os.path.join(self._root, path))
        if not full.startswith(self._root):
            raise OutsideWorkspace(path)
        return full

    def _read(self, path: str) -> str:
        with open(self._locate(path), encoding="utf-8", errors="replace") as file:
            return file.read(MAX_CHARACTERS)

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        path = input.get("path")
        if not isinstance(path, str) or not path:
            return ToolResult(success=False, error={"message": "path: expected a non-empty string"})
        try:
            text = await anyio.to_thread.run_sync(self._read, path)
        except OutsideWorkspace:
            return ToolResult(success=False, error={"message": f"{path!r} is outside of the workspace"})
        except (OSError, ValueError) as error:
            return ToolResult(success=False, error={"message": f"cannot read {path!r}: {error}"})
        return ToolResult(success=True, output={"path": path, "text": text})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    root = Path((config or {}).get("root") or Path.home() / "work")
    root.mkdir(parents=True, exist_ok=True)
    readme = root / "README.md"
    if not readme.exists():
        readme.write_text("# Work\n", encoding="utf-8")
    await coordinator.mount("tools", ReadWorkspaceTool(root))
