"""tool-search: find text in files, and files by name, inside the allowed directories only."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio.to_thread
import attrs

from amplifier._internal.programs import find_program, isolated_python, isolated_python_command
from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError
from amplifier.models import ToolResult

from .._shared.configuration import (
    Kind,
    choices,
    option,
    read_options,
    seconds,
    texts,
    whole_number,
)
from .._shared.failure import ToolFailure, shown
from .._shared.processes import WorkerProcess
from .._shared.worker_threads import Stop, Workers
from ._base import BuiltinTool, characters, flag, one_of, path_name, tool_input, whole
from ._glob import DEFAULT_IGNORED, GlobPattern, GlobTool, Walk, directory_names
from ._paths import AccessRoots, ConfinedPath, Workspace, open_directory, open_file, open_file_in

__all__ = ["GrepTool", "Matcher", "Search", "SearchOptions", "find_ripgrep", "mount"]

__amplifier_module_type__ = "tool"

_TOOLS = ("grep", "glob")

_ripgrep = Kind(
    "true to look for ripgrep, false to do without, or the program's absolute path",
    lambda value: isinstance(value, bool) or (isinstance(value, str) and Path(value).is_absolute()),
)


@attrs.frozen(kw_only=True)
class SearchOptions:
    """The directories that may be searched, and the limits of one search.

    Attributes:
        allowed_paths: The directories that may be searched. None for the session's working
            directory.
        tools: The tools to mount. None mounts both, except a glob that is already mounted.
        ripgrep: The path of ripgrep. True looks for it on the search path, and False uses none.
        ignore: Names of directories that are not entered.
        max_matches: Maximum number of lines or files in one result of grep.
        max_results: Maximum number of files in one result of glob.
        max_file_bytes: Larger files are left out.
        max_line_length: The number of bytes of each line that are searched.
        timeout: Seconds for one search.
        threads: Maximum number of searches at the same time.
    """

    allowed_paths: tuple[str, ...] | None = option(texts(least=1), default=None, restricts=True)
    tools: tuple[str, ...] | None = option(choices(*_TOOLS), default=None, restricts=True)
    ripgrep: bool | str = option(_ripgrep, default=True)
    ignore: frozenset[str] = option(directory_names, default=DEFAULT_IGNORED)
    max_matches: int = option(whole_number(1), default=200)
    max_results: int = option(whole_number(1), default=1000)
    max_file_bytes: int = option(whole_number(1), default=5 << 20)
    max_line_length: int = option(whole_number(1), default=2000)
    timeout: float = option(seconds, default=30.0)
    threads: int = option(whole_number(1), default=4)


_MAX_OUTPUT = 8 << 20
_NOTHING_FOUND = 1


# ── ripgrep ──────────────────────────────────────────────────────────────────────────────────────
# ripgrep is quick on large trees, but it opens files by path, so a tree that changes during the
# search may lead it outside the roots. Only the names that it prints are used. Each of these files
# is opened and searched again without ripgrep, so at worst a file is searched because of a file
# elsewhere.


def find_ripgrep(forbidden: Iterable[str]) -> str | None:
    """Return ripgrep's path, or None. A program below a forbidden directory doesn't count."""
    forbidden = list(forbidden)
    program = find_program("rg", avoid=forbidden)
    if program is None:
        return None
    real = Path(program).resolve()
    return None if any(real.is_relative_to(root) for root in forbidden) else str(real)


def _beneath(name: str) -> tuple[str, ...]:
    names = tuple(part for part in name.split("/") if part not in ("", "."))
    return () if name.startswith("/") or ".." in names else names


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[{" else character for character in name)


# The script is read at import, because a command from another tool might change the file later.
_PROGRAM = Path(__file__).with_name("_matcher_process.py").read_text(encoding="utf-8")
_MAX_MEMORY = 2 << 30


# ── matcher ──────────────────────────────────────────────────────────────────────────────────────
# Python's ``re`` can backtrack indefinitely on a line of twenty letters. A search holds the
# interpreter's lock, so in a thread it would block the event loop. A separate process can be
# killed. The matcher's process receives the content of files and opens none itself.


class Matcher:
    """A regular expression in a separate process, which searches one file after another.

    Args:
        pattern: The expression, in Python's syntax.
        ignore_case: True to treat upper and lower case as the same.
        max_line: The number of bytes of each line that are searched.
        seconds: Processor time after which the system ends the process.
        stop: Ends the process earlier.

    Raises:
        ToolFailure: The expression is invalid.
    """

    def __init__(
        self, pattern: str, *, ignore_case: bool, max_line: int, seconds: float, stop: Stop
    ) -> None:
        self._stop = stop
        self._child = WorkerProcess(isolated_python_command("-X", "utf8", "-c", _PROGRAM), stop)
        job = {
            "pattern": pattern,
            "ignore_case": ignore_case,
            "max_line": max_line,
            "cpu_seconds": int(seconds) + 5,
            "max_memory": _MAX_MEMORY,
        }
        try:
            reply = self._request(json.dumps(job).encode() + b"\n")
            if "error" in reply:
                raise ToolFailure(
                    "InvalidPattern", f"{shown(ascii(pattern))}: {shown(reply['error'])}"
                )
        except BaseException:
            self.close()
            raise

    def find(self, data: bytes, limit: int) -> dict[str, Any]:
        """Find at most ``limit`` matching lines, and return the reply of the process.

        Raises:
            ToolFailure: The process ended, most likely for lack of memory.
            Stopped: The call was cancelled.
        """
        return self._request(struct.pack("!II", len(data), limit) + data)

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def _request(self, request: bytes) -> dict[str, Any]:
        self._stop.check()
        try:
            self._child.stdin.write(request)
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except OSError:
            # The pipe breaks when the process has ended.
            line = b""
        self._stop.check()
        if not line:
            raise ToolFailure(
                "PatternTooCostly", "the pattern needed more memory or time than it may have"
            )
        reply: dict[str, Any] = json.loads(line)
        return reply


# ── search ────────────────────────────────────────────────────────────────────────────────────────

_CHUNK = 1 << 18
_SNIFFED = 8192
_MAX_COUNTED = 1_000_000
_MAX_LINE_CHARACTERS = 500
_MAX_CHARACTERS = 100_000


@attrs.define
class Search:
    """One search that is under way.

    Attributes:
        limit: Maximum number of matches in the result: lines, or files in the other modes.
    """

    workspace: Workspace
    options: SearchOptions
    values: dict[str, Any]
    stop: Stop
    limit: int
    matches: list[dict[str, Any]] = attrs.field(factory=list)
    files: dict[str, int] = attrs.field(factory=dict)
    searched: int = 0
    skipped_large: int = 0
    skipped_binary: int = 0
    unreadable: int = 0
    too_long: int = 0
    more: bool = False
    notes: list[str] = attrs.field(factory=list)
    _shown: int = 0

    def run(self) -> dict[str, Any]:
        """Search the files, and return the output of the tool.

        Raises:
            ToolFailure: The pattern or the path is wrong.
            OSError: The path cannot be opened.
            Stopped: The call was cancelled.
        """
        access = self.workspace.readable()
        base = access.locate(self.values["path"])
        glob = GlobPattern(self.values["glob"], anywhere=True) if "glob" in self.values else None
        matcher = Matcher(
            self.values["pattern"],
            ignore_case=self.values["ignore_case"],
            max_line=self.options.max_line_length,
            seconds=self.options.timeout,
            stop=self.stop,
        )
        with contextlib.closing(matcher):
            for file, place in self._files(access, base, glob):
                try:
                    self._search(matcher, file, place)
                finally:
                    os.close(file)
                if self.more:
                    break
        return self._output()

    def _files(
        self, access: AccessRoots, base: ConfinedPath, glob: GlobPattern | None
    ) -> Iterator[tuple[int, ConfinedPath]]:
        """Open files one after another. The caller closes them."""
        try:
            directory, base = open_directory(access, base)
        except ToolFailure as failure:
            if failure.kind != "NotADirectory":
                raise
            yield open_file(access, base)
            return
        os.close(directory)
        likely = self._likely(base)
        if likely is not None:
            for names in likely:
                if not self.options.ignore.intersection(names[:-1]) and (
                    glob is None or glob.matches(names)
                ):
                    yield from self._opened(
                        lambda place: open_file(access, place)[0],
                        ConfinedPath(base.root, base.names + names),
                    )
            return
        walk = Walk(access, self.stop, self.options.ignore)
        for match in walk.below(base, glob):
            if match.entry.kind == "file":
                yield from self._opened(partial(open_file_in, match.directory), match.place)
        self.unreadable += walk.unreadable
        if walk.cut:
            self.notes += walk.notes()[:1]

    def _likely(self, base: ConfinedPath) -> list[tuple[str, ...]] | None:
        """Use ripgrep to find the files below a directory that may match.

        Returns:
            The names of the files, or None if ripgrep can't decide, so that every file has to be
            read.
        """
        if not isinstance(self.options.ripgrep, str):
            return None
        command = [
            self.options.ripgrep,
            "--no-config",
            "--files-with-matches",
            "--null",
            "--no-messages",
            "--no-ignore",
            "--hidden",
            "--no-require-git",
            "--threads=2",
            f"--max-filesize={self.options.max_file_bytes}",
            *(f"--glob=!**/{_escaped(name)}/**" for name in self.options.ignore),
            *(["--ignore-case"] if self.values["ignore_case"] else []),
            f"--regexp={self.values['pattern']}",
            "--",
            ".",
        ]
        try:
            with contextlib.closing(
                WorkerProcess(command, self.stop, directory=base.path)
            ) as child:
                output = child.stdout.read(_MAX_OUTPUT)
                if len(output) == _MAX_OUTPUT:
                    return None
                code = child.wait()
        except (OSError, ValueError):
            # The program can't be started, or the pattern holds a NUL, which no argument can.
            return None
        self.stop.check()
        if code not in (0, _NOTHING_FOUND):
            # The pattern isn't valid in Rust's syntax, or a directory can't be read.
            return None
        return sorted(
            {names for name in os.fsdecode(output).split("\0") if (names := _beneath(name))}
        )

    def _opened(
        self, opening: Callable[[ConfinedPath], int], place: ConfinedPath
    ) -> Iterator[tuple[int, ConfinedPath]]:
        try:
            file = opening(place)
        except (OSError, ToolFailure):
            # The file has been removed or replaced, or is unreadable.
            self.unreadable += 1
            return
        yield file, place

    def _search(self, matcher: Matcher, file: int, place: ConfinedPath) -> None:
        data = self._content(file)
        if data is None:
            return
        self.searched += 1
        mode = self.values["output_mode"]
        limit = {"content": self.limit - len(self.matches), "count": _MAX_COUNTED}.get(mode, 1)
        hits = matcher.find(data, limit)
        self.too_long += hits["too_long"]
        if not hits["lines"]:
            # The limit can be 0 here, in which case a match means that there are more.
            self.more = self.more or hits["more"]
            return
        if mode != "content" and len(self.files) == self.limit:
            self.more = True
            return
        path = self.workspace.shown(place)
        self.files[path] = len(hits["lines"])
        if mode == "content":
            self.more = hits["more"]
            self._show(path, data.removesuffix(b"\n").split(b"\n"), hits["lines"])

    def _content(self, file: int) -> bytes | None:
        """Read the whole file. Return None if it is binary or too large."""
        data = bytearray()
        while chunk := os.read(file, _CHUNK):
            self.stop.check()
            data += chunk
            if b"\0" in data[:_SNIFFED]:
                self.skipped_binary += 1
                return None
            if len(data) > self.options.max_file_bytes:
                self.skipped_large += 1
                return None
        return bytes(data)

    def _show(self, path: str, lines: list[bytes], numbers: list[int]) -> None:
        context = self.values["context"]
        for number in numbers:
            match: dict[str, Any] = {
                "file_path": path,
                "line": number + 1,
                "text": self._line(lines[number]),
            }
            if context:
                match["before"] = [
                    self._line(line) for line in lines[max(0, number - context) : number]
                ]
                match["after"] = [
                    self._line(line) for line in lines[number + 1 : number + 1 + context]
                ]
            self._shown += sum(
                map(len, (match["text"], *match.get("before", ()), *match.get("after", ())))
            )
            if self._shown > _MAX_CHARACTERS:
                self.more = True
                return
            self.matches.append(match)

    def _line(self, line: bytes) -> str:
        return shown(line.decode("utf-8", "replace").rstrip("\r"), _MAX_LINE_CHARACTERS)

    def _output(self) -> dict[str, Any]:
        mode = self.values["output_mode"]
        output: dict[str, Any] = {
            "files_searched": self.searched,
            "truncated": self.more or bool(self.notes),
        }
        if mode == "content":
            output = {"matches": self.matches, "count": len(self.matches), **output}
        elif mode == "count":
            counts = [{"file_path": path, "count": count} for path, count in self.files.items()]
            output = {"counts": counts, "count": sum(self.files.values()), **output}
        else:
            output = {"files": list(self.files), "count": len(self.files), **output}
        notes = list(self.notes)
        if self.more:
            notes.insert(
                0, "there are more matches than are listed; use a narrower pattern, path or glob"
            )
        for number, note in (
            (
                self.skipped_large,
                f"files larger than {self.options.max_file_bytes} bytes were left out",
            ),
            (self.skipped_binary, "binary files were left out"),
            (self.unreadable, "files or directories could not be read"),
            (
                self.too_long,
                f"lines were searched only in their first {self.options.max_line_length} bytes",
            ),
        ):
            if number:
                notes.append(f"{number} {note}")
        if notes:
            output["note"] = "; ".join(notes)
        return output


class GrepTool(BuiltinTool):
    """The tool that finds text in files.

    Args:
        workspace: The directories that may be searched.
        workers: The module's threads.
        options: The configuration.
    """

    _name = "grep"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Find lines that match a regular expression (Python syntax, line by line) in a file or in "
        "all files below a directory. output_mode content gives the lines, files_with_matches the "
        "files, count the number per file. Binary and very large files and some directories such "
        "as .git are left out."
    )
    _input = tool_input(
        pattern=option(characters(1, 1000), doc="The expression."),
        path=option(path_name, ".", "The file or directory; the workspace if left out."),
        glob=option(
            characters(1, 1000),
            None,
            "Look only into files whose path matches, for example *.py or src/**/*.{ts,tsx}.",
        ),
        ignore_case=option(flag, False, "Treat upper and lower case as the same."),
        output_mode=option(
            one_of("content", "files_with_matches", "count"), "content", "What to list."
        ),
        context=option(whole(0, 10), 0, "Lines to show before and after each match."),
        limit=option(whole(1, 10_000), None, "Maximum number of matches to return."),
    )

    def __init__(self, workspace: Workspace, workers: Workers, options: SearchOptions) -> None:
        self._workspace = workspace
        self._workers = workers
        self._options = options

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        limit = min(values.get("limit", self._options.max_matches), self._options.max_matches)
        output = await self._workers.run(
            lambda stop: Search(self._workspace, self._options, values, stop, limit).run(),
            label=f"grep {shown(ascii(values['pattern']), 80)}",
        )
        return ToolResult(output=output)


_MODULE = "tool-search"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount grep and glob.

    Args:
        coordinator: The coordinator of the session.
        config: The keys of `SearchOptions`.

    Raises:
        PlanError: The config is invalid.
        ModuleLoadError: There is no Python program to run patterns in.
    """
    options = read_options(SearchOptions, _MODULE, config)
    if not isolated_python():
        raise ModuleLoadError(
            f"{_MODULE} runs patterns in a separate Python process, but sys.executable is empty"
        )
    workspace = await anyio.to_thread.run_sync(
        Workspace, _MODULE, coordinator, options.allowed_paths
    )
    workers = Workers(threads=options.threads, timeout=options.timeout)
    if options.ripgrep is True:
        program = await anyio.to_thread.run_sync(
            lambda: find_ripgrep(root.path for root in workspace.readable().roots)
        )
        options = attrs.evolve(options, ripgrep=program or False)
    for name in _TOOLS if options.tools is None else options.tools:
        if name == "grep":
            await coordinator.mount("tools", GrepTool(workspace, workers, options))
        # tool-filesystem offers the same glob, and whichever module is mounted first provides it.
        elif options.tools is not None or coordinator.get("tools", "glob") is None:
            glob = GlobTool(
                workspace, workers, ignored=options.ignore, max_results=options.max_results
            )
            await coordinator.mount("tools", glob)
