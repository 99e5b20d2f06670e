"""grep: lines of files that match a regular expression."""

from __future__ import annotations

from typing import Any, ClassVar

import anyio.to_thread
import attrs

from amplifier._programs import isolated_python
from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError
from amplifier.models import ToolResult

from ..._shared.configuration import read_options
from ..._shared.failure import shown
from ..._shared.worker_threads import Workers
from .._base import BuiltinTool, characters, flag, option, path_name, tool_input, whole, word
from .._paths import GlobTool, Workspace
from ._search import TOOLS, Search, SearchOptions, find_ripgrep


class GrepTool(BuiltinTool):
    """Finds text in files.

    Args:
        workspace: Where to look.
        workers: The module's threads.
        options: How much, and with which program.
    """

    _name = "grep"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Find lines that match a regular expression (Python syntax, line by line) in a file or in all files below a "
        "directory. output_mode content gives the lines, files_with_matches the files, count the number per file. "
        "Binary and very large files and some directories such as .git are left out."
    )
    _input = tool_input(
        pattern=option(characters(1, 1000), doc="The expression."),
        path=option(path_name, ".", "The file or directory; the workspace if left out."),
        glob=option(
            characters(1, 1000),
            None,
            "Look only into files whose path matches, for example *.py or src/**/*.{ts,tsx}.",
        ),
        ignore_case=option(flag, False, "Upper and lower case are the same."),
        output_mode=option(word("content", "files_with_matches", "count"), "content", "What to list."),
        context=option(whole(0, 10), 0, "Lines to show before and after each match."),
        limit=option(whole(1, 10_000), None, "Matches wanted at most."),
    )

    def __init__(self, workspace: Workspace, workers: Workers, options: SearchOptions) -> None:
        self._workspace = workspace
        self._workers = workers
        self._options = options

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        wanted = min(values.get("limit", self._options.max_matches), self._options.max_matches)
        output = await self._workers.run(
            lambda stop: Search(self._workspace, self._options, values, stop, wanted).run(),
            what=f"grep {shown(ascii(values['pattern']), 80)}",
        )
        return ToolResult(output=output)


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
    if not isolated_python():
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
