"""Reads the configuration and mounts the tools."""

from __future__ import annotations

import sys
from typing import Any

import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError

from .._confined_paths import GlobTool, Workspace
from .._shared.configuration import read_options
from .._tool_base import Workers
from ._grep_tool import GrepTool
from ._options import TOOLS, SearchOptions
from ._ripgrep import find_ripgrep

_MODULE = "tool-search"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount grep and glob.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        ModuleLoadError: There is no Python to run patterns in.
    """
    options = read_options(SearchOptions, _MODULE, config)
    if not sys.executable:
        raise ModuleLoadError(f"{_MODULE} runs patterns in a Python of their own, but sys.executable is empty")
    workspace = await anyio.to_thread.run_sync(Workspace, _MODULE, coordinator, options.allowed_paths)
    workers = Workers(threads=options.threads, timeout=options.timeout)
    if options.ripgrep is True:
        found = await anyio.to_thread.run_sync(lambda: find_ripgrep(root.path for root in workspace.readable().roots))
        options = attrs.evolve(options, ripgrep=found or False)
    for name in TOOLS if options.tools is None else options.tools:
        if name == "grep":
            await coordinator.mount("tools", GrepTool(workspace, workers, options))
        # tool-filesystem offers the same glob; the module that is mounted first provides it.
        elif options.tools is not None or coordinator.get("tools", "glob") is None:
            glob = GlobTool(workspace, workers, ignored=options.ignore, max_results=options.max_results)
            await coordinator.mount("tools", glob)
