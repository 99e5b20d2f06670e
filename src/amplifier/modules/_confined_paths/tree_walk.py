"""Walks the tree below a root; symbolic links are listed but never followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import attrs

from .._shared.configuration import texts
from .._tool_base import Stop
from .glob_patterns import GlobPattern, States
from .open_beneath import Entry, enter, entries_of, open_directory
from .workspace import MAX_DEPTH, AccessRoots, ConfinedPath

DEFAULT_IGNORED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Names of directories that a search rarely means."""

directory_names = attrs.evolve(texts(), convert=frozenset)
"""The kind of an option that names directories to ignore."""

MAX_ENTRIES = 1_000_000
"""Names after which a walk ends, whatever it has found."""


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
        states = pattern.start() if pattern is not None else frozenset()
        # A list in place of recursion; what is on it are open directories, so it is never longer than MAX_DEPTH.
        levels: list[tuple[int, Iterator[tuple[Found, States]]]] = []
        try:
            levels.append((directory, self._level(directory, place, pattern, states)))
            while levels:
                found, after = next(levels[-1][1], (None, states))
                if found is None:
                    os.close(levels.pop()[0])
                    continue
                if pattern is None or pattern.is_match(after):
                    yield found
                self._descend(levels, found, pattern, after)
        finally:
            for directory, _ in levels:
                os.close(directory)

    def notes(self) -> list[str]:
        """What limits the result, as text for the model."""
        notes = []
        if self.cut:
            notes.append(f"the tree is too large or too deep; the walk ended after {self._seen} names")
        if self.unreadable:
            notes.append(f"{self.unreadable} directories could not be read")
        return notes

    def _descend(self, levels: list[Any], found: Found, pattern: GlobPattern | None, states: States) -> None:
        name = found.entry.name
        if found.entry.kind != "directory" or name in self.ignored:
            return
        if pattern is not None and not states:
            return
        if len(levels) >= MAX_DEPTH:
            self.cut = True
            return
        try:
            inner = enter(found.directory, name)
        except OSError:  # gone, forbidden, or no directory any more: the walk goes on without it
            self.unreadable += 1
            return
        levels.append((inner, self._level(inner, found.place, pattern, states)))

    def _level(
        self, directory: int, place: ConfinedPath, pattern: GlobPattern | None, states: States
    ) -> Iterator[tuple[Found, States]]:
        try:
            entries = sorted(self._counted(directory), key=lambda entry: entry.name)
        except OSError:
            self.unreadable += 1
            return
        for entry in entries:
            after = pattern.step(states, entry.name) if pattern is not None else states
            if pattern is None or after:
                yield Found(place.child(entry.name), entry, directory), after

    def _counted(self, directory: int) -> Iterator[Entry]:
        for entry in entries_of(directory):
            self.stop.check()
            self._seen += 1
            if self._seen > MAX_ENTRIES:
                self.cut = True
                return
            yield entry
