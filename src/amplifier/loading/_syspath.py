"""The sys.path entries that loaders hold, counted for the whole process.

Above: `_loader`, one holder per root. Below: nothing of ours. sys.path belongs to the process, so the count does too;
it is the only state here, and it is empty when no loader holds a root.
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

    Appended, never inserted: what stands in front of the standard library or of installed packages replaces them for
    every other import in the process.

    Returns:
        Whether `release` is due; False when the root was on sys.path on somebody else's account.
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
        # From the end: an equal entry further in front is somebody else's.
        for position in range(len(sys.path) - 1, -1, -1):
            if sys.path[position] == root:
                del sys.path[position]
                break
        sys.path_importer_cache.pop(root, None)


def held_roots() -> Container[str]:
    """The entries that are on sys.path only because loaders put them there, as a live view."""
    return _counts.keys()
