"""Finds the protected places below the folders that commands may change, quickly enough for every command."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator

import attrs

from ..._shared.protected_places import (
    ProtectedPlaces,
    is_git_layout,
    may_be_entry,
    named_by_configuration,
    named_by_pointer,
)

_SLACK = 10_000_000
"""Nanoseconds within which two changes may have one ctime, before Linux 6.13."""
_LAYOUT = frozenset(("HEAD", "head", "objects", "refs", "commondir"))
_MAX_NAMED = 50
"""Repositories whose configuration is read for further places; each takes some files to read."""


@attrs.frozen
class Swept:
    """What a look at the writable folders found.

    Attributes:
        places: Protected places by their path, with device and inode. Nothing below one of them is listed.
        repositories: The ones that are git's: every ``.git``, bare layouts, and what a ``.git`` leads to.
        sockets: Sockets in the file system.
        closed: Folders that can't be listed, with device and inode.
    """

    places: dict[str, tuple[int, int]]
    repositories: frozenset[str]
    sockets: tuple[str, ...]
    closed: dict[str, tuple[int, int]] = attrs.field(factory=dict)

    def new_since(self, before: Swept) -> list[str]:
        """Return the places that another look had not found, wherever they were moved since."""
        known = set(before.places.values())
        return [path for path, found in self.places.items() if found not in known]


@attrs.frozen
class _Folder:
    """A folder as it was listed: everything of it that matters here."""

    ctime: int
    is_fresh: bool
    folders: tuple[str, ...]
    hits: tuple[str, ...]
    sockets: tuple[str, ...]
    is_repository: bool
    is_closed: bool = False


class Sweep:
    """Looks at trees, and again only at the folders that changed since.

    A folder's ctime tells: nobody can set it, as they can the mtime. One that changed in the moment it was listed is listed again.

    Args:
        protected: The list of protected places.
    """

    def __init__(self, protected: ProtectedPlaces) -> None:
        self.protected = protected
        self._known: dict[tuple[int, int], _Folder] = {}

    def look(self, roots: Iterable[str], *, skip: Iterable[str] = ()) -> Swept:
        """Look at some trees.

        Args:
            roots: Their folders, as real paths; none is below another one.
            skip: Folders that are not looked into.
        """
        skipped, known, new = frozenset(skip), self._known, dict[tuple[int, int], _Folder]()
        recently = time.clock_gettime_ns(time.CLOCK_REALTIME) - _SLACK
        places: dict[str, None] = {}
        repositories: dict[str, None] = {}
        sockets: list[str] = []
        closed: dict[str, tuple[int, int]] = {}
        tops = set(roots)
        pending = sorted(tops)
        for path in pending:  # grows
            if path in skipped:
                continue
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if not stat.S_ISDIR(found.st_mode):
                continue
            key = (found.st_dev, found.st_ino)
            folder = known.get(key)
            if folder is None or folder.is_fresh or folder.ctime != found.st_ctime_ns:
                folder = self._list(path, found.st_ctime_ns, is_fresh=found.st_ctime_ns >= recently)
            new[key] = folder
            if folder.is_closed:
                closed[path] = key
            if folder.is_repository and path not in tops and not self.protected._is_allowed(path):
                places[path] = repositories[path] = None
                continue
            if folder.is_repository and path in tops:
                names = [*folder.hits, *folder.folders, "config", "config.worktree", "commondir"]
                inside = [path, *(f"{path}/{name}" for name in names if os.path.lexists(f"{path}/{name}"))]
                places |= dict.fromkeys(inside)
                repositories |= dict.fromkeys(inside)
                continue
            sockets += [f"{path}/{name}" for name in folder.sockets]
            for name in folder.hits:
                hit = f"{path}/{name}"
                if not self.protected.is_entry(hit):
                    if os.path.isdir(hit) and not os.path.islink(hit):  # noqa: PTH112, PTH114 - as above
                        pending.append(hit)
                    continue
                places[hit] = None
                if os.path.islink(hit) and os.path.exists(hit):  # noqa: PTH110, PTH114 - as above
                    places[os.path.realpath(hit)] = None
                if name.lower() == ".git":
                    repositories[hit] = None
                    repositories |= dict.fromkeys(each for each in named_by_pointer(hit) if os.path.lexists(each))
                    if len(repositories) <= _MAX_NAMED:
                        places |= dict.fromkeys(named_by_configuration(path))
            pending += [f"{path}/{name}" for name in folder.folders]
        self._known = new
        return Swept(dict(_identities({**places, **repositories})), frozenset(repositories), tuple(sockets), closed)

    def _list(self, path: str, ctime: int, *, is_fresh: bool) -> _Folder:
        folders, hits, sockets, layout = list[str](), list[str](), list[str](), list[str]()
        is_closed = False
        is_candidate = may_be_entry if not self.protected.added else lambda name: True
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if name in _LAYOUT:
                        layout.append(name)
                    if is_candidate(name):
                        hits.append(name)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(name)
                    elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                        sockets += [name] * _is_socket(entry.path)
        except PermissionError:
            is_closed = True
        except OSError:
            pass
        return _Folder(ctime, is_fresh, tuple(folders), tuple(hits), tuple(sockets), is_git_layout(layout), is_closed)


def _identities(paths: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    for path in paths:
        try:
            found = os.lstat(path)
        except OSError:
            continue
        yield path, (found.st_dev, found.st_ino)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
