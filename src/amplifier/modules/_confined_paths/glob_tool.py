"""glob: files by name. Shared, because two modules offer it and built-in modules do not import each other."""

from __future__ import annotations

from typing import Any, ClassVar

from amplifier.models import ToolResult

from .._tool_base import BuiltinTool, Stop, Workers, shown
from .glob_patterns import GlobPattern
from .tree_walk import Walk
from .workspace import Workspace


class GlobTool(BuiltinTool):
    """Finds files by glob pattern.

    Args:
        workspace: Where to look.
        workers: The module's threads.
        ignored: Directories that are not entered.
        max_results: Paths in one answer.
    """

    _name = "glob"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Find files by name. Pattern: * and ? within a name, ** for any directories, {a,b} for alternatives, "
        "for example **/*.{py,md}. Returns paths in order, directories with a trailing slash. "
        "Symbolic links are listed but not entered; some directories such as .git are skipped."
    )
    _schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "The glob pattern.", "minLength": 1, "maxLength": 1000},
            "path": {
                "type": "string",
                "description": "The directory to start in; the workspace if left out.",
                "minLength": 1,
                "maxLength": 4096,
                "default": ".",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }

    def __init__(self, workspace: Workspace, workers: Workers, *, ignored: frozenset[str], max_results: int) -> None:
        self._workspace = workspace
        self._workers = workers
        self._ignored = ignored
        self._max_results = max_results

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        pattern = GlobPattern(values["pattern"])
        output = await self._workers.run(
            lambda stop: self._search(pattern, values["path"], stop), what=f"glob {shown(values['pattern'])}"
        )
        return ToolResult(output=output)

    def _search(self, pattern: GlobPattern, path: str, stop: Stop) -> dict[str, Any]:
        access = self._workspace.readable()
        walk = Walk(access, stop, self._ignored)
        paths: list[str] = []
        more = False
        for found in walk.below(access.locate(path), pattern):
            if len(paths) == self._max_results:
                more = True
                break
            slash = "/" if found.entry.kind == "directory" else ""
            paths.append(self._workspace.shown(found.place) + slash)
        output: dict[str, Any] = {"paths": paths, "count": len(paths), "truncated": more or walk.cut}
        notes = walk.notes()
        if more:
            notes.insert(0, f"only the first {self._max_results} matches are listed; use a narrower pattern or path")
        if notes:
            output["note"] = "; ".join(notes)
        return output
