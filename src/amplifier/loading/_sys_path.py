"""The sys.path entries that loaders hold: counted for the whole process, and within one loader by session.

sys.path belongs to the process, so the count does, too; it is the only global state here, and it is empty when no
loader holds a root. `HeldRoots` is one loader's part of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Container
from typing import Final

_counts: Final[dict[str, int]] = {}
_lock: Final = threading.Lock()


def acquire(root: str) -> bool:
    """Make a root importable, behind everything that already is.

    Appended, never inserted: an entry before the standard library or installed packages replaces them for
    every other import in the process.

    Returns:
        Whether `release` is due; False when the root was on sys.path already, not through a loader.
    """
    with _lock:
        if root in _counts:
            _counts[root] += 1
        elif root in sys.path:
            return False
        else:
            _counts[root] = 1
        if root not in sys.path:
            sys.path.append(root)
        return True


def release(root: str) -> None:
    """Give up one hold on a root; the last one takes it off sys.path."""
    with _lock:
        left = _counts[root] - 1
        if left:
            _counts[root] = left
            return
        del _counts[root]
        # From the end: an equal entry further in front is not a loader's.
        for position in range(len(sys.path) - 1, -1, -1):
            if sys.path[position] == root:
                del sys.path[position]
                break
        sys.path_importer_cache.pop(root, None)


def held_roots() -> Container[str]:
    """The entries that are on sys.path only because loaders put them there, as a live view."""
    return _counts.keys()


class HeldRoots:
    """The roots that one loader holds, by the session that uses them; what no session asked for is held for None.

    Sessions are known by their id, not by reference: a loader that an application keeps must not keep a session alive
    that was dropped without being closed.
    """

    __slots__ = ("_roots",)

    def __init__(self) -> None:
        self._roots: dict[int | None, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len({root for roots in self._roots.values() for root in roots})

    def __contains__(self, root: str) -> bool:
        return any(root in roots for roots in self._roots.values())

    def begin(self, user: object) -> None:
        """A session starts to use the loader."""
        self._roots.setdefault(id(user), ())

    def end(self, user: object) -> None:
        """A session has closed: its roots are given up; the last session gives up those held for None as well."""
        roots = self._roots.pop(id(user), None)
        if roots:
            _release_all(roots)
        if roots is not None and self._roots.keys() == {None}:
            self.clear()

    def add(self, root: str, user: object) -> bool:
        """Hold a root for a session, or for None.

        Returns:
            Whether it is held now and was not before.
        """
        key = None if user is None else id(user)
        roots = self._roots.get(key, ())
        if root in roots or not acquire(root):
            return False
        self._roots[key] = (*roots, root)
        return True

    def discard(self, root: str, user: object) -> None:
        """Give up a root that `add` has just taken."""
        key = None if user is None else id(user)
        self._roots[key] = tuple(held for held in self._roots[key] if held != root)
        release(root)

    def clear(self) -> None:
        """Give up every root, whoever uses it."""
        for user, roots in self._roots.items():
            self._roots[user] = ()
            _release_all(roots)


def _release_all(roots: tuple[str, ...]) -> None:
    for root in roots:
        release(root)
