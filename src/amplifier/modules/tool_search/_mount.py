"""Reads the plan and mounts the tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError

from .._confined_paths import DEFAULT_IGNORED, WORKSPACE_CHECKS, GlobTool, Workspace
from .._tool_base import Workers, count, one_of, read_config, seconds, texts
from ._grep_tool import GrepTool
from ._ripgrep import find_ripgrep
from ._searching import SearchOptions

_MODULE = "tool-search"
_TOOLS = ("grep", "glob")


def _program(value: Any) -> str | None:
    if isinstance(value, bool) or (isinstance(value, str) and Path(value).is_absolute()):
        return None
    return f"expected true to look for it, false to do without, or the program's absolute path, got {value!r}"


_CHECKS = {
    "allowed_paths": WORKSPACE_CHECKS["allowed_paths"],
    "tools": one_of(_TOOLS, several=True),
    "ripgrep": _program,
    "ignore": texts(),
    "max_matches": count(1),
    "max_results": count(1),
    "max_file_bytes": count(1),
    "max_line_length": count(1),
    "timeout": seconds,
    "threads": count(1),
}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount grep and glob.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        ModuleLoadError: There is no Python to run patterns in.
    """
    given = read_config(_MODULE, config, _CHECKS)
    if not sys.executable:
        raise ModuleLoadError(f"{_MODULE} runs patterns in a Python of their own, but sys.executable is empty")
    workspace = await anyio.to_thread.run_sync(Workspace, _MODULE, coordinator, given)
    timeout = given.get("timeout", 30.0)
    workers = Workers(threads=given.get("threads", 4), timeout=timeout)
    ignored = frozenset(given.get("ignore", DEFAULT_IGNORED))
    known = {field.name for field in attrs.fields(SearchOptions)} - {"ripgrep", "timeout"}
    options = SearchOptions(
        ripgrep=await anyio.to_thread.run_sync(_ripgrep, given.get("ripgrep", True), workspace),
        ignored=ignored,
        timeout=timeout,
        **{name: value for name, value in given.items() if name in known},
    )
    for name in given.get("tools", _TOOLS):
        if name == "grep":
            await coordinator.mount("tools", GrepTool(workspace, workers, options))
        # tool-filesystem offers the same glob; whoever was asked for it first has mounted it.
        elif "tools" in given or coordinator.get("tools", "glob") is None:
            glob = GlobTool(workspace, workers, ignored=ignored, max_results=given.get("max_results", 1000))
            await coordinator.mount("tools", glob)


def _ripgrep(wanted: bool | str, workspace: Workspace) -> str | None:
    if isinstance(wanted, str):
        return wanted
    return find_ripgrep(root.path for root in workspace.readable().roots) if wanted else None
