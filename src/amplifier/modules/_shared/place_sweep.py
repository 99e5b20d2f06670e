"""Finds the protected places below some folders, quickly enough for every command and every write."""

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

_SLACK: Final = 10_000_000
"""Nanoseconds within which two changes may have one ctime, before Linux 6.13."""
_LAYOUT: Final = frozenset(("head", "objects", "refs", "commondir"))

_MAX_KNOWN: Final = 4
"""Roots that are remembered."""

# How a folder is looked at. In a place, links and files with a second name matter as well. What git stores has names that
# anyone can choose, such as those of branches, so that only repositories are looked for there.
_Kind: TypeAlias = Literal["ordinary", "place", "stored", "kept"]
_KINDS_IN_GIT: Final[dict[str, _Kind]] = {
    **dict.fromkeys(("refs", "logs", "objects", "lfs", "annex"), "stored"),
    # Repositories belong here.
    **dict.fromkeys(("modules", "worktrees"), "kept"),
}


class Entries(Protocol):
    """The names that a sweep looks for."""

    def may_be_entry(self, name: str) -> bool:
        """Check whether a name can be the last one of an entry, whatever is before it."""

    def is_entry(self, path: str) -> bool:
        """Check whether a path is the top of a place."""

    def is_allowed(self, path: str) -> bool:
        """Check whether the plan leaves a path unprotected."""

    def names_after(self, name: str) -> tuple[str, ...]:
        """Return the last names of entries that begin with a name and have two, such as ``hooks`` after ``.github``."""


@attrs.frozen
class Swept:
    """What a look at some trees found.

    Attributes:
        places: Protected places by their path, with device and inode; also those in another one.
        led: What something protected leads programs to: a link, a second name, or the configuration of a repository. The path,
            which need not exist, with that of what leads to it.
        repositories: The places that are git's: every ``.git``, bare layouts, and what a ``.git`` leads to.
        sockets: Sockets in the file system.
        closed: Folders that could not be listed, with device and inode. What is in them can be used by its name all the same.
    """

    places: dict[str, tuple[int, int]]
    led: dict[str, str]
    repositories: frozenset[str]
    sockets: tuple[str, ...]
    closed: dict[str, tuple[int, int]] = attrs.field(factory=dict)


@attrs.frozen
class _Folder:
    """A folder as it was listed: everything of it that matters here."""

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


class Sweep:
    """Looks at trees, and lists again only the folders that changed since.

    A folder's ctime tells: nobody can set it, as they can the mtime. One that changed in the moment it was listed is listed again.

    Args:
        entries: The names.
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
        most_folders: int | None = None,
        second_names: bool = False,
    ) -> Swept:
        """Look at some trees.

        Args:
            roots: Their folders, as real paths; none is below another one.
            skip: Folders that are not looked into.
            most_folders: Stop after so many.
            second_names: Whether other names (hard links) of protected files are looked for.
        """
        tops = tuple(sorted(set(roots)))
        with self._lock:
            look = _Look(
                self._entries,
                self._known.pop(tops, {}),
                tops,
                frozenset(skip),
                most_folders,
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
        most_folders: int | None,
        second_names: bool,
    ) -> None:
        self._entries = entries
        self._known = known
        self._tops = tops
        self._skip = skip
        self._most = most_folders
        self._second_names = second_names
        self._recently = time.clock_gettime_ns(time.CLOCK_REALTIME) - _SLACK
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
        ordinary = [*self._tops]
        for path in ordinary:  # grows
            folder = self._folder(path)
            if folder is None:
                continue
            if folder.is_plain:
                ordinary += folder.folders
            else:
                ordinary += self._note(folder, "ordinary")
        looked_at = set[tuple[str, _Kind]]()
        for item in self._special:  # grows
            path, kind = item
            if item in looked_at or (folder := self._folder(path)) is None:
                continue
            looked_at.add(item)
            self._special += [(each, kind) for each in self._note(folder, kind)]
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
        """Return a folder, listed again if it changed; None if it is not to be looked into."""
        try:
            found = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISDIR(found.st_mode) or path in self._skip:
            return None
        key = (found.st_dev, found.st_ino)
        folder = self._known.get(key)
        if (
            folder is None
            or folder.is_fresh
            or folder.ctime != found.st_ctime_ns
            or folder.path != path
        ):
            if self._most is not None and len(self.seen) >= self._most:
                return None
            is_fresh = found.st_ctime_ns >= self._recently
            folder = self._list(path, found.st_ctime_ns, is_fresh=is_fresh)
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
        """Note what is in a folder; returns the folders in it that are looked at like this one."""
        self._sockets += folder.sockets
        self._closed += [folder.path] * folder.is_closed
        is_git = folder.is_repository and not self._entries.is_allowed(folder.path)
        if is_git and kind != "kept":
            self._places[folder.path] = self._repositories[folder.path] = None
            if folder.path in self._tops:
                # The folder itself is to be changed, so each part of it is protected.
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
        if os.path.islink(path):  # noqa: PTH114 - there may be many
            self._follow(path)
        else:
            self._special.append((path, "place"))
            if self._second_names:
                self._note_if_linked(path)
        if _is_dot_git(path):
            self._repositories[path] = None
            self._repositories |= dict.fromkeys(
                each for each in pointed_at(path) if os.path.lexists(each)
            )
            self._lead(path, named_by_configuration(path.rpartition("/")[0]))

    def _note_beginning(self, link: str) -> None:
        """Note what a link such as ``.github`` leads to, if something called ``hooks`` is or may be in there."""
        target = real_path(link)
        names = self._entries.names_after(link.rpartition("/")[2])
        found = [name for name in _names_in(target) if self._entries.is_entry(f"{link}/{name}")]
        if found:
            self._places[link] = None
        self._lead(
            link,
            [real_path(f"{target}/{name}") for name in {*found, *names} if "*" not in name],
        )

    def _follow(self, link: str) -> None:
        try:
            self._lead(link, [real_path(link)])
        except OSError:
            return

    def _lead(self, leader: str, paths: Iterable[str]) -> None:
        for path in paths:
            # Where the whole folder would be protected, nothing could be done.
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
            found = os.lstat(path)
        except OSError:
            return
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            self._linked[found.st_dev, found.st_ino] = path

    def _find_second_names(self) -> None:
        """Look for the other names of protected files. Listing tells the inode without asking for each file."""
        for (device, _), folder in self.seen.items():
            try:
                with os.scandir(folder.path) as listing:
                    found = [
                        entry.path for entry in listing if (device, entry.inode()) in self._linked
                    ]
            except OSError:
                continue
            for path in found:
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
    """Check whether git would take a folder with these names for a repository."""
    found = {fold(name) for name in names}
    return "head" in found and ("commondir" in found or {"objects", "refs"} <= found)


def repositories_above(path: str) -> Iterator[str]:
    """Yield the folders above a path that have a ``.git``, the nearest first."""
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
        found = os.lstat(path)
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


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
