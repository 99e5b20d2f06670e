"""Reads the configuration and mounts the tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread

from amplifier.contracts import Coordinator

from ..._shared.configuration import read_options
from ..._shared.worker_threads import Workers
from .._base import BuiltinTool
from .._paths import GlobTool, Workspace
from ._options import READING_TOOLS, WRITING_TOOLS, FilesystemOptions
from ._read_tools import ListDirectoryTool, ReadFileTool
from ._write_tools import EditFileTool, WriteFileTool

_MODULE = "tool-filesystem"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount read_file, write_file, edit_file, list_directory and glob; without the writing ones where nothing may be.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
    """
    options = read_options(FilesystemOptions, _MODULE, config)
    workspace = await anyio.to_thread.run_sync(
        Workspace, _MODULE, coordinator, options.allowed_paths, options.writable_paths, options.read_only
    )
    workers = Workers(threads=options.threads, timeout=options.timeout)
    common = (coordinator, workspace, workers, options)
    lock = anyio.Lock()
    tools: dict[str, Callable[[], BuiltinTool]] = {
        "read_file": lambda: ReadFileTool(*common),
        "list_directory": lambda: ListDirectoryTool(*common),
        "glob": lambda: GlobTool(workspace, workers, ignored=options.ignore, max_results=options.max_results),
        "write_file": lambda: WriteFileTool(*common, lock),
        "edit_file": lambda: EditFileTool(*common, lock),
    }
    for name in READING_TOOLS + WRITING_TOOLS if options.tools is None else options.tools:
        if name in WRITING_TOOLS and not workspace.is_writable:
            continue
        # tool-search offers the same glob; the module that is mounted first provides it.
        if name == "glob" and options.tools is None and coordinator.get("tools", "glob") is not None:
            continue
        await coordinator.mount("tools", tools[name]())
