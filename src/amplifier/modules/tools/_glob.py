"""The `glob` tool, which finds files by name. Two modules offer it."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeAlias

import attrs

from amplifier.models import ToolResult

from .._shared.configuration import texts
from .._shared.failure import ToolFailure, shown
from .._shared.worker_threads import Stop, Workers
from ._base import BuiltinTool, characters, option, path_name, tool_input
from ._paths import (
    MAX_DEPTH,
    AccessRoots,
    ConfinedPath,
    Entry,
    Workspace,
    enter,
    entries_of,
    open_directory,
)

_MAX_ALTERNATIVES = 64

_ANY_DEPTH = None

Rest: TypeAlias = tuple[re.Pattern[str] | None, ...]
States: TypeAlias = frozenset[Rest]
"""The part of each alternative that is left to match."""


# ── glob patterns ─────────────────────────────────────────────────────────────────────────────────
# ``*``, ``?`` and ``[a-z]`` match within a name, ``**`` matches over directories, and ``{a,b}``
# stands for alternatives. A pattern is matched name by name while the tree is walked, so that a
# directory in which nothing can match isn't entered. `fnmatch` matches the names, because its
# patterns don't backtrack beyond one star.


class GlobPattern:
    """A compiled pattern.

    Args:
        pattern: The text of the pattern.
        anywhere: True if a pattern without a slash matches names at any depth, as in
            ``.gitignore``.

    Raises:
        ToolFailure: The pattern is absolute, has ``..`` in it, or has too many alternatives.
    """

    def __init__(self, pattern: str, *, anywhere: bool = False) -> None:
        self._alternatives = [self._compiled(text, anywhere) for text in _expanded(pattern)]

    def start(self) -> States:
        """Return the states before any name."""
        return self._closed(self._alternatives)

    def step(self, states: States, name: str) -> States:
        """Return the states after one more name. If there are none, nothing below can match."""
        after: list[Rest] = []
        for rest in states:
            part = rest[0] if rest else None
            if part is not None and part.match(name):
                after.append(rest[1:])
            elif rest and part is _ANY_DEPTH:
                after.append(rest)
        return self._closed(after)

    def is_match(self, states: States) -> bool:
        """Return whether the names up to here are a match."""
        return () in states

    def matches(self, names: tuple[str, ...]) -> bool:
        """Return whether a whole path matches."""
        return self.is_match(functools.reduce(self.step, names, self.start()))

    @staticmethod
    def _closed(states: Iterable[Rest]) -> States:
        """Add the states that are reached when ``**`` matches no directory."""
        reached: set[Rest] = set()
        for rest in states:
            reached.add(rest)
            while rest and rest[0] is _ANY_DEPTH:
                rest = rest[1:]  # noqa: PLW2901
                reached.add(rest)
        return frozenset(reached)

    @staticmethod
    def _compiled(text: str, anywhere: bool) -> Rest:
        names = [name for name in text.split("/") if name not in ("", ".")]
        if text.startswith(("/", "~")) or ".." in names or not names or "\0" in text:
            problem = "expected a pattern below the directory given as path, such as **/*.py"
            raise ToolFailure("InvalidPattern", f"{shown(text)!r}: {problem}")
        if anywhere and len(names) == 1:
            names = ["**", *names]
        return tuple(
            _ANY_DEPTH if name == "**" else re.compile(fnmatch.translate(name)) for name in names
        )


def _expanded(pattern: str) -> list[str]:
    """Return the pattern once for every alternative in braces.

    Braces without a comma or without an end are kept as text.
    """
    complete: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(complete) + len(waiting) > _MAX_ALTERNATIVES:
            raise ToolFailure(
                "InvalidPattern", f"{shown(pattern)!r}: more than {_MAX_ALTERNATIVES} alternatives"
            )
        text = waiting.pop()
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if braces is None:
            complete.append(text)
        else:
            waiting += [
                f"{text[: braces.start()]}{part}{text[braces.end() :]}"
                for part in braces[1].split(",")
            ]
    return complete


DEFAULT_IGNORED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Names of directories that are seldom worth searching."""

directory_names = attrs.evolve(texts(), convert=frozenset)
"""The kind of an option that names directories to ignore."""

MAX_ENTRIES = 1_000_000
"""Maximum number of names that one walk lists, matches or not."""


# ── tree walk ─────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Match:
    """A match of a walk.

    Attributes:
        place: The path that matched.
        entry: The name, and the kind of file at the time of the listing.
        directory: The descriptor of the parent directory. It stays open while the walk is in that
            directory.
    """

    place: ConfinedPath
    entry: Entry
    directory: int


@attrs.define
class Walk:
    """One walk over a tree, depth first, with names in order.

    Symbolic links are listed but never followed.

    Attributes:
        access: The roots that the walk must not leave.
        stop: Checked at every name.
        ignored: Names of directories that are not entered.
        unreadable: The number of directories that could not be listed.
        cut: True if the walk ended early because of `MAX_ENTRIES` or `MAX_DEPTH`.
    """

    access: AccessRoots
    stop: Stop
    ignored: frozenset[str]
    unreadable: int = 0
    cut: bool = False
    _seen: int = 0

    def below(self, place: ConfinedPath, pattern: GlobPattern | None = None) -> Iterator[Match]:
        """Find all files and directories below a directory that match the pattern.

        Raises:
            ToolFailure: The place isn't a directory, or leads outside.
            OSError: The place can't be opened.
            Stopped: The call was cancelled.
        """
        directory, place = open_directory(self.access, place)
        try:
            yield from self._below(
                directory, place, pattern, pattern.start() if pattern else frozenset(), 1
            )
        finally:
            os.close(directory)

    def _below(
        self,
        directory: int,
        place: ConfinedPath,
        pattern: GlobPattern | None,
        states: States,
        depth: int,
    ) -> Iterator[Match]:
        try:
            entries = sorted(self._counted(directory), key=lambda entry: entry.name)
        except OSError:
            self.unreadable += 1
            return
        for entry in entries:
            after = pattern.step(states, entry.name) if pattern else states
            if pattern is not None and not after:
                continue
            child = place.child(entry.name)
            if pattern is None or pattern.is_match(after):
                yield Match(child, entry, directory)
            if entry.kind != "directory" or entry.name in self.ignored:
                continue
            if depth == MAX_DEPTH:
                self.cut = True
                continue
            try:
                inner = enter(directory, entry.name)
            except OSError:
                # The directory has been removed or replaced, or can't be read.
                self.unreadable += 1
                continue
            try:
                yield from self._below(inner, child, pattern, after, depth + 1)
            finally:
                os.close(inner)

    def notes(self) -> list[str]:
        """Return notes for the model about missing results."""
        notes = []
        if self.cut:
            notes.append(
                f"the tree is too large or too deep; the walk ended after {self._seen} names"
            )
        if self.unreadable:
            notes.append(f"{self.unreadable} directories could not be read")
        return notes

    def _counted(self, directory: int) -> Iterator[Entry]:
        for entry in entries_of(directory):
            self.stop.check()
            self._seen += 1
            if self._seen > MAX_ENTRIES:
                self.cut = True
                return
            yield entry


class GlobTool(BuiltinTool):
    """The tool that finds files by a glob pattern.

    Args:
        workspace: The directories that may be searched.
        workers: The module's threads.
        ignored: Names of directories that are not entered.
        max_results: Maximum number of paths in one result.
    """

    _name = "glob"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Find files by name. Pattern: * and ? within a name, ** for any directories, {a,b} for "
        "alternatives, for example **/*.{py,md}. Returns paths in order, directories with a "
        "trailing slash. Symbolic links are listed but not entered; some directories such as .git "
        "are skipped."
    )
    _input = tool_input(
        pattern=option(characters(1, 1000), doc="The glob pattern."),
        path=option(path_name, ".", "The directory to start in; the workspace if left out."),
    )

    def __init__(
        self, workspace: Workspace, workers: Workers, *, ignored: frozenset[str], max_results: int
    ) -> None:
        self._workspace = workspace
        self._workers = workers
        self._ignored = ignored
        self._max_results = max_results

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        pattern = GlobPattern(values["pattern"])
        output = await self._workers.run(
            lambda stop: self._search(pattern, values["path"], stop),
            label=f"glob {shown(values['pattern'])}",
        )
        return ToolResult(output=output)

    def _search(self, pattern: GlobPattern, path: str, stop: Stop) -> dict[str, Any]:
        access = self._workspace.readable()
        walk = Walk(access, stop, self._ignored)
        paths: list[str] = []
        has_more = False
        for match in walk.below(access.locate(path), pattern):
            if len(paths) == self._max_results:
                has_more = True
                break
            slash = "/" if match.entry.kind == "directory" else ""
            paths.append(self._workspace.shown(match.place) + slash)
        output: dict[str, Any] = {
            "paths": paths,
            "count": len(paths),
            "truncated": has_more or walk.cut,
        }
        notes = walk.notes()
        if has_more:
            note = f"only the first {self._max_results} matches are listed"
            notes.insert(0, f"{note}; use a narrower pattern or path")
        if notes:
            output["note"] = "; ".join(notes)
        return output
