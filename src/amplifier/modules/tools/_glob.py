"""glob: files by name. Shared, because two modules offer it and built-in modules do not import each other."""

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

_MOST_ALTERNATIVES = 64

_ANY_DEPTH = None

Rest: TypeAlias = tuple[re.Pattern[str] | None, ...]
States: TypeAlias = frozenset[Rest]
"""What each alternative still has to match."""


# ── glob patterns ─────────────────────────────────────────────────────────────────────────────────
# Glob patterns: ``*``, ``?``, ``[a-z]`` within a name, ``**`` over directories, ``{a,b}`` for alternatives.
#
# Matched name by name while a tree is walked, so that a directory in which nothing can match is not entered. Names
# are matched by `fnmatch`, whose patterns do not backtrack beyond one star.


class GlobPattern:
    """A compiled pattern.

    A pattern without a slash matches names at any depth if `anywhere` is set, as in ``.gitignore``.

    Raises:
        ToolFailure: The pattern is absolute, goes up, or has too many alternatives.
    """

    def __init__(self, pattern: str, *, anywhere: bool = False) -> None:
        self._alternatives = [self._compiled(text, anywhere) for text in _expanded(pattern)]

    def start(self) -> States:
        """The states before any name."""
        return self._closed(self._alternatives)

    def step(self, states: States, name: str) -> States:
        """The states after one more name; none means that nothing below can match."""
        after: list[Rest] = []
        for rest in states:
            part = rest[0] if rest else None
            if part is not None and part.match(name):
                after.append(rest[1:])
            elif rest and part is _ANY_DEPTH:
                after.append(rest)
        return self._closed(after)

    def is_match(self, states: States) -> bool:
        """Whether the names so far are a match."""
        return () in states

    def matches(self, names: tuple[str, ...]) -> bool:
        """Whether a whole path matches."""
        return self.is_match(functools.reduce(self.step, names, self.start()))

    @staticmethod
    def _closed(states: Iterable[Rest]) -> States:
        """The states with those that ``**`` reaches by matching nothing."""
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
    """The pattern once for every alternative in braces; braces without a comma or without an end stay as they are."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(done) + len(waiting) > _MOST_ALTERNATIVES:
            raise ToolFailure(
                "InvalidPattern", f"{shown(pattern)!r}: more than {_MOST_ALTERNATIVES} alternatives"
            )
        text = waiting.pop()
        found = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if found is None:
            done.append(text)
        else:
            waiting += [
                f"{text[: found.start()]}{part}{text[found.end() :]}"
                for part in found[1].split(",")
            ]
    return done


DEFAULT_IGNORED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Names of directories that a search rarely means."""

directory_names = attrs.evolve(texts(), convert=frozenset)
"""The kind of an option that names directories to ignore."""

MAX_ENTRIES = 1_000_000
"""Names after which a walk ends, whatever it has found."""


# ── tree walk ─────────────────────────────────────────────────────────────────────────────────────
# Walks the tree below a root; symbolic links are listed but never followed.


@attrs.frozen
class Found:
    """A name met on a walk.

    Attributes:
        place: Where it is.
        entry: As it was listed.
        directory: The directory that holds it, open while the walk is here.
    """

    place: ConfinedPath
    entry: Entry
    directory: int


@attrs.define
class Walk:
    """One walk over a tree, depth first, names in order.

    Attributes:
        ignored: Directories with these names are not entered.
        unreadable: How many directories could not be listed.
        cut: Whether it ended early because of `MAX_ENTRIES` or `MAX_DEPTH`.
    """

    access: AccessRoots
    stop: Stop
    ignored: frozenset[str]
    unreadable: int = 0
    cut: bool = False
    _seen: int = 0

    def below(self, place: ConfinedPath, pattern: GlobPattern | None = None) -> Iterator[Found]:
        """Everything below a directory that matches the pattern, directories included.

        Raises:
            ToolFailure: The place is no directory, or leads outside.
            OSError: It cannot be opened.
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
    ) -> Iterator[Found]:
        try:
            entries = sorted(self._counted(directory), key=lambda entry: entry.name)
        except OSError:
            self.unreadable += 1
            return
        for entry in entries:
            after = pattern.step(states, entry.name) if pattern else states
            if pattern is not None and not after:
                continue
            found = Found(place.child(entry.name), entry, directory)
            if pattern is None or pattern.is_match(after):
                yield found
            if entry.kind != "directory" or entry.name in self.ignored:
                continue
            if depth == MAX_DEPTH:
                self.cut = True
                continue
            try:
                inner = enter(directory, entry.name)
            except (
                OSError
            ):  # gone, forbidden, or no directory any more: the walk goes on without it
                self.unreadable += 1
                continue
            try:
                yield from self._below(inner, found.place, pattern, after, depth + 1)
            finally:
                os.close(inner)

    def notes(self) -> list[str]:
        """What limits the result, as text for the model."""
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
            what=f"glob {shown(values['pattern'])}",
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
        output: dict[str, Any] = {
            "paths": paths,
            "count": len(paths),
            "truncated": more or walk.cut,
        }
        notes = walk.notes()
        if more:
            notes.insert(
                0,
                f"only the first {self._max_results} matches are listed; use a narrower pattern or path",
            )
        if notes:
            output["note"] = "; ".join(notes)
        return output
