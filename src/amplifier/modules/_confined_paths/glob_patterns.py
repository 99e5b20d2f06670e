"""Glob patterns: ``*``, ``?``, ``[a-z]`` within a name, ``**`` over directories, ``{a,b}`` for alternatives.

Matched name by name while a tree is walked, so that a directory in which nothing can match is not entered. Names are
matched by `fnmatch`, whose patterns do not backtrack beyond one star.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TypeAlias

from .._tool_base import ToolFailure, shown

_MOST_ALTERNATIVES = 64

States: TypeAlias = frozenset[tuple[int, int]]
"""How far each alternative has matched: pairs of alternative and next name of its pattern."""

_ANY_DEPTH = None


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
        return self._closed({(which, 0) for which in range(len(self._alternatives))})

    def step(self, states: States, name: str) -> States:
        """The states after one more name; none means that nothing below can match."""
        after: set[tuple[int, int]] = set()
        for which, position in states:
            parts = self._alternatives[which]
            if position == len(parts):
                continue
            part = parts[position]
            if part is _ANY_DEPTH:
                after.add((which, position))
            elif part.match(name):
                after.add((which, position + 1))
        return self._closed(after)

    def is_match(self, states: States) -> bool:
        """Whether the names so far are a match."""
        return any(position == len(self._alternatives[which]) for which, position in states)

    def matches(self, names: tuple[str, ...]) -> bool:
        """Whether a whole path matches."""
        states = self.start()
        for name in names:
            states = self.step(states, name)
        return self.is_match(states)

    def _closed(self, states: set[tuple[int, int]]) -> States:
        """The states with those that ``**`` reaches by matching nothing."""
        for which, position in list(states):
            parts = self._alternatives[which]
            reached = position
            while reached < len(parts) and parts[reached] is _ANY_DEPTH:
                reached += 1
                states.add((which, reached))
        return frozenset(states)

    @staticmethod
    def _compiled(text: str, anywhere: bool) -> list[re.Pattern[str] | None]:
        names = [name for name in text.split("/") if name not in ("", ".")]
        if text.startswith(("/", "~")) or ".." in names or not names or "\0" in text:
            problem = "expected a pattern below the directory given as path, such as **/*.py"
            raise ToolFailure("InvalidPattern", f"{shown(text)!r}: {problem}")
        if anywhere and len(names) == 1:
            names = ["**", *names]
        return [_ANY_DEPTH if name == "**" else re.compile(fnmatch.translate(name)) for name in names]


def _expanded(pattern: str) -> list[str]:
    """The pattern once for every alternative in braces; braces without a comma or without an end stay as they are."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(done) + len(waiting) > _MOST_ALTERNATIVES:
            raise ToolFailure("InvalidPattern", f"{shown(pattern)!r}: more than {_MOST_ALTERNATIVES} alternatives")
        text = waiting.pop()
        found = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if found is None:
            done.append(text)
        else:
            waiting += [f"{text[: found.start()]}{part}{text[found.end() :]}" for part in found[1].split(",")]
    return done
