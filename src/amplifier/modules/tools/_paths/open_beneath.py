"""Opens files below a root so that no symbolic link leads out of it, however the tree changes meanwhile.

Every step opens one name relative to the directory opened before it and follows no link, so there is no moment between
checking and using. A link that is met is read, checked as text against the roots, and the walk starts again at a root.
Even the way from ``/`` to the root is walked like this.

Limits: a directory that another process moves out of the root while it is open is still the directory that was opened. A file
with a second name (a hard link) outside is readable through the name inside.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import operator
import os
import stat
from collections.abc import Iterator
from typing import Literal

import attrs

from amplifier._regular_file import irregular_kind

from ..._shared.failure import ToolFailure, failure_from_os, shown
from .workspace import AccessRoots, ConfinedPath

_MAX_LINKS = 32
_NOT_FOLLOWED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})  # errors for a link; the last is BSD's


def _flags(*names: str) -> int:
    """The flags by name; a system that lacks one cannot mount the tools, but may import them."""
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


# O_PATH needs no right to list a directory, only to pass through it; elsewhere than on Linux it has to do without.
_PASS = _flags("O_PATH", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
_LIST = _flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
# O_NONBLOCK: opening a FIFO must not wait for its other end. O_NOCTTY: a terminal must not become the controlling one.
_READ = _flags("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC")


def open_directory(access: AccessRoots, place: ConfinedPath, *, make: bool = False) -> tuple[int, ConfinedPath]:
    """Open a directory to reach what is in it.

    Args:
        access: Where links may lead.
        place: The directory.
        make: Create what is missing.

    Returns:
        A descriptor, the caller's to close, and the place without links.

    Raises:
        ToolFailure: It is no directory, or a link leads outside.
        OSError: It is missing or forbidden.
    """
    for _ in range(_MAX_LINKS):
        directory, is_reached = _open_root(place.root), False
        try:
            for index, name in enumerate(place.names):
                try:
                    following = _enter_or_make(directory, name, make=make)
                except OSError as error:
                    if error.errno not in _NOT_FOLLOWED:
                        raise
                    here = ConfinedPath(place.root, place.names[: index + 1])
                    if (target := _link_text(name, directory)) is None:
                        raise ToolFailure("NotADirectory", f"{shown(here.path)} is not a directory") from error
                    place = access.follow(here, target, place.names[index + 1 :])
                    break
                os.close(directory)
                directory = following
            else:
                is_reached = True
                return directory, place
        finally:
            if not is_reached:
                os.close(directory)
    raise ToolFailure("TooManyLinks", f"{shown(place.path)}: more than {_MAX_LINKS} symbolic links on the way")


def open_parent(access: AccessRoots, place: ConfinedPath, *, make: bool = False) -> tuple[int, ConfinedPath]:
    """Open the directory that holds a place whose last name is no symbolic link, following it if it is one.

    Returns:
        The directory's descriptor, the caller's to close, and the place whose last name is to be used in it.

    Raises:
        ToolFailure: As `open_directory`; also if the place is a root.
        OSError: As `open_directory`.
    """
    for _ in range(_MAX_LINKS):
        if not place.names:
            raise ToolFailure("IsADirectory", f"{shown(place.path)} is a directory, expected a file")
        name = place.names[-1]
        directory, above = open_directory(access, place.parent, make=make)
        place = above.child(name)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, directory)
            target = _link_text(name, directory)
            if target is None:
                stack.pop_all()
                return directory, place
        place = access.follow(place, target, ())
    raise ToolFailure("TooManyLinks", f"{shown(place.path)}: more than {_MAX_LINKS} symbolic links on the way")


def open_file(access: AccessRoots, place: ConfinedPath) -> tuple[int, ConfinedPath]:
    """Open a regular file for reading, without ever waiting for another process.

    Returns:
        A descriptor, the caller's to close, and the place without links.

    Raises:
        ToolFailure: It is something else, or a link leads outside.
        OSError: It is missing or forbidden.
    """
    directory, place = open_parent(access, place)
    with _closing(directory):
        return open_file_in(directory, place), place


def open_file_in(directory: int, place: ConfinedPath) -> int:
    """Open a regular file in a directory that is open already; a link is refused.

    Raises:
        ToolFailure: It is something else.
        OSError: It is missing or forbidden.
    """
    name = place.names[-1]
    # Asked first because merely opening a device can have an effect, and again afterwards because only that counts.
    refuse_unless_regular(os.stat(name, dir_fd=directory, follow_symlinks=False), place)
    try:
        file = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        raise failure_from_os(error, shown(place.path)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        refuse_unless_regular(os.fstat(file), place)
        stack.pop_all()
    return file


def refuse_unless_regular(info: os.stat_result, place: ConfinedPath) -> None:
    """Do nothing for a regular file.

    Raises:
        ToolFailure: It is something else; the message names it.
    """
    if (found := irregular_kind(info.st_mode)) is not None:
        kind = "IsADirectory" if stat.S_ISDIR(info.st_mode) else "NotARegularFile"
        raise ToolFailure(kind, f"{shown(place.path)} is {found}, expected a regular file")


@attrs.frozen
class Entry:
    """A name in a directory and what it was when it was listed."""

    name: str
    kind: Literal["file", "directory", "link", "other"]


def entries_of(directory: int) -> Iterator[Entry]:
    """List a directory that was opened to be passed through; names that are no UTF-8 come as surrogates.

    Raises:
        OSError: It may not be listed.
    """
    listing = os.open(".", _LIST, dir_fd=directory)
    with _closing(listing), os.scandir(listing) as entries:
        for entry in entries:
            yield _entry(entry)


def _entry(found: os.DirEntry[str]) -> Entry:
    # Now and not later: the system's entry may ask through the descriptor of the listing, which is closed by then.
    try:
        if found.is_symlink():
            return Entry(found.name, "link")
        if found.is_dir(follow_symlinks=False):
            return Entry(found.name, "directory")
        return Entry(found.name, "file" if found.is_file(follow_symlinks=False) else "other")
    except OSError:  # gone, on a system that has to ask again
        return Entry(found.name, "other")


def enter(directory: int, name: str) -> int:
    """Open a directory inside one that is open; a link is refused.

    Raises:
        OSError: It is missing, forbidden, a link or no directory.
    """
    return os.open(name, _PASS, dir_fd=directory)


def _open_root(root: str) -> int:
    directory = os.open("/", _PASS)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: os.close(directory))
        for name in root.split("/"):
            if name:
                following = enter(directory, name)
                os.close(directory)
                directory = following
        stack.pop_all()
    return directory


def _enter_or_make(directory: int, name: str, *, make: bool) -> int:
    try:
        return enter(directory, name)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return enter(directory, name)


def _link_text(name: str, directory: int) -> str | None:
    """The target of a link; None if it is none, or nothing at all."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
