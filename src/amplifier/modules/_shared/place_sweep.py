"""Find the protected places below some folders, fast enough for every command and every write."""

from __future__ import annotations

import functools
import os
import stat
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final, Literal, Protocol, TypeAlias

import attrs

from amplifier._internal.programs import is_below

from .git_configuration import named_by_configuration, pointed_at, real_path

# Before Linux 6.13, two changes within this period may have the same ctime.
_SLACK_NANOSECONDS: Final = 10_000_000
_LAYOUT: Final = frozenset(("head", "objects", "refs", "commondir"))

# The maximum number of sets of roots with remembered results.
_MAX_KNOWN: Final = 4

# The kind of a folder determines how it is searched. In a protected place, links and files with a
# second name matter as well. In folders where git stores data, anyone can choose names, for example
# those of branches. So these folders are searched only for repositories.
_Kind: TypeAlias = Literal["ordinary", "place", "stored", "kept"]
_KINDS_IN_GIT: Final[dict[str, _Kind]] = {
    **dict.fromkeys(("refs", "logs", "objects", "lfs", "annex"), "stored"),
    # These folders are meant to contain repositories.
    **dict.fromkeys(("modules", "worktrees"), "kept"),
}


class Entries(Protocol):
    """The names that a sweep looks for."""

    def may_be_entry(self, name: str) -> bool:
        """Check whether a name can be the last one of an entry in any folder."""

    def is_entry(self, path: str) -> bool:
        """Check whether a path is the top of a place."""

    def is_allowed(self, path: str) -> bool:
        """Check whether the plan leaves a path unprotected."""

    def names_after(self, name: str) -> tuple[str, ...]:
        """Return the second names of two-part entries, such as ``hooks`` for ``.github``."""


@attrs.frozen
class Swept:
    """The result of a search of some trees.

    Attributes:
        places: Device and inode of the protected places, by path. Nested places are included.
        led: Paths to which something protected leads programs, each with the path of the protected
            thing: a link, a second name, or a repository's configuration. The paths need not exist.
        repositories: The places that belong to git: every ``.git``, bare layouts, and the folders
            to which a ``.git`` leads.
        sockets: Sockets in the file system.
        closed: Device and inode of the folders that can't be listed, by path. Files in them can
            still be opened by name.
    """

    places: dict[str, tuple[int, int]]
    led: dict[str, str]
    repositories: frozenset[str]
    sockets: tuple[str, ...]
    closed: dict[str, tuple[int, int]] = attrs.field(factory=dict)


@attrs.frozen
class _Folder:
    """The relevant content of a folder when it was listed."""

    path: str
    ctime: int
    is_fresh: bool
    folders: tuple[str, ...]
    entries: tuple[str, ...]
    links: tuple[str, ...]
    beginnings: tuple[str, ...]
    sockets: tuple[str, ...]
    is_repository: bool
    is_closed: bool

    @property
    def is_plain(self) -> bool:
        return not (
            self.entries or self.is_repository or self.sockets or self.beginnings or self.is_closed
        )


# A folder's ctime shows whether the folder has changed. Unlike the mtime, no program can set it. A
# folder that changed just before it was listed is listed again next time, because a later change
# may have had the same ctime.


class Sweep:
    """Searches trees, and lists only the folders that changed since the last search.

    Args:
        entries: The names to look for.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], dict[tuple[int, int], _Folder]] = {}

    def look(
        self,
        roots: Iterable[str],
        *,
        skip: Iterable[str] = (),
        max_folders: int | None = None,
        second_names: bool = False,
    ) -> Swept:
        """Search some trees.

        Args:
            roots: The top folders, as real paths. No root is inside another root.
            skip: Folders that are not searched.
            max_folders: The number of folders after which the search stops.
            second_names: Whether to find other names (hard links) of protected files.
        """
        tops = tuple(sorted(set(roots)))
        with self._lock:
            look = _Look(
                self._entries,
                self._known.pop(tops, {}),
                tops,
                frozenset(skip),
                max_folders,
                second_names,
            )
            look.run()
            self._known[tops] = look.seen
            if len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return look.swept()


class _Look:
    def __init__(
        self,
        entries: Entries,
        known: dict[tuple[int, int], _Folder],
        tops: tuple[str, ...],
        skip: frozenset[str],
        max_folders: int | None,
        second_names: bool,
    ) -> None:
        self._entries = entries
        self._known = known
        self._tops = tops
        self._skip = skip
        self._max_folders = max_folders
        self._second_names = second_names
        self._recently = time.clock_gettime_ns(time.CLOCK_REALTIME) - _SLACK_NANOSECONDS
        self.seen: dict[tuple[int, int], _Folder] = {}
        self._places: dict[str, None] = {}
        self._led: dict[str, str] = {}
        self._repositories: dict[str, None] = {}
        self._sockets: list[str] = []
        self._closed: list[str] = []
        self._special: list[tuple[str, _Kind]] = []
        self._linked: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        for top in self._tops:
            for worktree in repositories_above(top):
                self._lead(f"{worktree}/.git", named_by_configuration(worktree))
        # Each of the two loops appends to the list that it iterates over.
        ordinary = [*self._tops]
        for path in ordinary:
            folder = self._folder(path)
            if folder is None:
                continue
            if folder.is_plain:
                ordinary += folder.folders
            else:
                ordinary += self._note(folder, "ordinary")
        visited = set[tuple[str, _Kind]]()
        for item in self._special:
            path, kind = item
            if item in visited or (folder := self._folder(path)) is None:
                continue
            visited.add(item)
            self._special += [(child, kind) for child in self._note(folder, kind)]
        if self._linked:
            self._find_second_names()

    def swept(self) -> Swept:
        for path in self._repositories:
            self._places[path] = None
        return Swept(
            dict(_identities(self._places)),
            self._led,
            frozenset(self._repositories),
            tuple(self._sockets),
            dict(_identities(self._closed)),
        )

    def _folder(self, path: str) -> _Folder | None:
        """Return a folder, listed again if it changed, or None if it isn't searched."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISDIR(status.st_mode) or path in self._skip:
            return None
        key = (status.st_dev, status.st_ino)
        folder = self._known.get(key)
        if (
            folder is None
            or folder.is_fresh
            or folder.ctime != status.st_ctime_ns
            or folder.path != path
        ):
            if self._max_folders is not None and len(self.seen) >= self._max_folders:
                return None
            is_fresh = status.st_ctime_ns >= self._recently
            folder = self._list(path, status.st_ctime_ns, is_fresh=is_fresh)
        self.seen[key] = folder
        return folder

    def _list(self, path: str, ctime: int, *, is_fresh: bool) -> _Folder:
        entries, base = self._entries, path.rstrip("/")
        folders, hits, links, beginnings, sockets = (
            list[str](),
            list[str](),
            list[str](),
            list[str](),
            list[str](),
        )
        layout, is_closed = list[str](), False
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    name = entry.name
                    if len(name) < 20 and fold(name) in _LAYOUT:
                        layout.append(name)
                    if entries.may_be_entry(name) and entries.is_entry(f"{base}/{name}"):
                        hits.append(f"{base}/{name}")
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(f"{base}/{name}")
                    elif entry.is_symlink():
                        links.append(f"{base}/{name}")
                        if entries.names_after(name):
                            beginnings.append(f"{base}/{name}")
                    elif not entry.is_file(follow_symlinks=False):
                        sockets += [f"{base}/{name}"] * _is_socket(entry.path)
        except FileNotFoundError:
            pass
        except OSError:
            is_closed = True
        return _Folder(
            path,
            ctime,
            is_fresh,
            tuple(folders),
            tuple(hits),
            tuple(links),
            tuple(beginnings),
            tuple(sockets),
            is_git_layout(layout),
            is_closed,
        )

    def _note(self, folder: _Folder, kind: _Kind) -> tuple[str, ...]:
        """Record the content of a folder, and return its subfolders to search."""
        self._sockets += folder.sockets
        self._closed += [folder.path] * folder.is_closed
        is_git = folder.is_repository and not self._entries.is_allowed(folder.path)
        if is_git and kind != "kept":
            self._places[folder.path] = self._repositories[folder.path] = None
            if folder.path in self._tops:
                # Commands may change the folder itself, so each part of it is protected.
                inside = [
                    *folder.folders,
                    *(
                        f"{folder.path}/{name}"
                        for name in ("config", "config.worktree", "commondir")
                    ),
                ]
                self._repositories |= dict.fromkeys(
                    path for path in inside if os.path.lexists(path)
                )
        if is_git or kind == "place":
            for link in folder.links:
                self._follow(link)
            if self._second_names:
                self._note_second_names(folder.path)
        for hit in folder.entries:
            if _is_dot_git(hit) or is_git or kind in ("ordinary", "place"):
                self._note_entry(hit)
        if kind in ("ordinary", "place"):
            for link in folder.beginnings:
                self._note_beginning(link)
        if not is_git:
            return folder.folders
        for path in folder.folders:
            self._special.append((path, _KINDS_IN_GIT.get(path.rpartition("/")[2], "place")))
        return ()

    def _note_entry(self, path: str) -> None:
        self._places[path] = None
        if os.path.islink(path):  # noqa: PTH114 - faster
            self._follow(path)
        else:
            self._special.append((path, "place"))
            if self._second_names:
                self._note_if_linked(path)
        if _is_dot_git(path):
            self._repositories[path] = None
            self._repositories |= dict.fromkeys(filter(os.path.lexists, pointed_at(path)))
            self._lead(path, named_by_configuration(path.rpartition("/")[0]))

    def _note_beginning(self, link: str) -> None:
        """Record a link such as ``.github`` if its target contains or may get a ``hooks``."""
        target = real_path(link)
        names = self._entries.names_after(link.rpartition("/")[2])
        hits = [name for name in _names_in(target) if self._entries.is_entry(f"{link}/{name}")]
        if hits:
            self._places[link] = None
        self._lead(
            link,
            [real_path(f"{target}/{name}") for name in {*hits, *names} if "*" not in name],
        )

    def _follow(self, link: str) -> None:
        try:
            self._lead(link, [real_path(link)])
        except OSError:
            return

    def _lead(self, leader: str, paths: Iterable[str]) -> None:
        for path in paths:
            # With a top folder or its parents protected, no work would be possible.
            if (
                not any(is_below(path, top) and path != top for top in self._tops)
                or path in self._led
            ):
                continue
            self._led[path] = leader
            if os.path.lexists(path):
                self._places[path] = None
                self._special.append((path, "place"))
                if self._second_names:
                    self._note_if_linked(path)

    # ── second names ──

    def _note_second_names(self, folder: str) -> None:
        for name in _names_in(folder):
            self._note_if_linked(f"{folder}/{name}")

    def _note_if_linked(self, path: str) -> None:
        try:
            status = os.lstat(path)
        except OSError:
            return
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            self._linked[status.st_dev, status.st_ino] = path

    def _find_second_names(self) -> None:
        """Find the other names of protected files.

        A folder's listing includes inodes, so no separate call is needed for each file.
        """
        for (device, _), folder in self.seen.items():
            try:
                with os.scandir(folder.path) as listing:
                    paths = [
                        entry.path for entry in listing if (device, entry.inode()) in self._linked
                    ]
            except OSError:
                continue
            for path in paths:
                if path not in self._places and path != self._linked.get(_identity(path)):
                    self._led.setdefault(path, self._linked[_identity(path)])
                    self._places[path] = None


@functools.lru_cache(maxsize=4096)
def fold(name: str) -> str:
    """Return a name as the most tolerant file system compares it."""
    if name.isascii():
        return name.lower()
    normal = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in normal if unicodedata.category(character) != "Cf")


def is_git_layout(names: Iterable[str]) -> bool:
    """Check whether git would treat a folder with these names as a repository."""
    folded = {fold(name) for name in names}
    return "head" in folded and ("commondir" in folded or {"objects", "refs"} <= folded)


def repositories_above(path: str) -> Iterator[str]:
    """Yield the folders above a path that contain a ``.git``, nearest first."""
    folder = path.rpartition("/")[0]
    while folder:
        if os.path.lexists(f"{folder}/.git"):
            yield folder
        folder = folder.rpartition("/")[0]


def _is_dot_git(path: str) -> bool:
    return fold(path.rpartition("/")[2]) == ".git"


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - text
    except OSError:
        return []


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.lstat(path)
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino


def _identities(paths: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    for path in paths:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        yield path, (status.st_dev, status.st_ino)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
