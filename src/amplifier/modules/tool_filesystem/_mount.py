"""Reads the plan and mounts the tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator

from .._confined_paths import DEFAULT_IGNORED, WORKSPACE_CHECKS, GlobTool, Workspace
from .._tool_base import BuiltinTool, Workers, count, flag, one_of, read_config, seconds, texts
from ._tools import Limits, ListDirectoryTool, ReadFileTool
from ._write_tools import EditFileTool, WriteFileTool

_MODULE = "tool-filesystem"
_READING = ("read_file", "list_directory", "glob")
_WRITING = ("write_file", "edit_file")

_CHECKS = {
    **WORKSPACE_CHECKS,
    "tools": one_of(_READING + _WRITING, several=True),
    "max_read_bytes": count(1),
    "max_write_bytes": count(1),
    "max_entries": count(1),
    "max_results": count(1),
    "images": flag,
    "max_image_bytes": count(1),
    "ignore": texts(),
    "timeout": seconds,
    "threads": count(1),
}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount read_file, write_file, edit_file, list_directory and glob; without the writing ones where nothing may be.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
    """
    options = read_config(_MODULE, config, _CHECKS)
    workspace = await anyio.to_thread.run_sync(Workspace, _MODULE, coordinator, options)
    workers = Workers(threads=options.get("threads", 4), timeout=options.get("timeout", 30.0))
    limits = Limits(**{field.name: options[field.name] for field in attrs.fields(Limits) if field.name in options})
    common = (coordinator, workspace, workers, limits)
    lock = anyio.Lock()
    tools: dict[str, Callable[[], BuiltinTool]] = {
        "read_file": lambda: ReadFileTool(*common),
        "list_directory": lambda: ListDirectoryTool(*common),
        "glob": lambda: GlobTool(
            workspace,
            workers,
            ignored=frozenset(options.get("ignore", DEFAULT_IGNORED)),
            max_results=options.get("max_results", 1000),
        ),
        "write_file": lambda: WriteFileTool(*common, lock),
        "edit_file": lambda: EditFileTool(*common, lock),
    }
    for name in options.get("tools", _READING + _WRITING):
        if name in _WRITING and not workspace.is_writable:
            continue
        # tool-search offers the same glob; whoever was asked for it first has mounted it.
        if name == "glob" and "tools" not in options and coordinator.get("tools", "glob") is not None:
            continue
        await coordinator.mount("tools", tools[name]())
