"""Keeps aside what a command made and programs outside obey, until a person allows it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from typing import Any

import attrs

from ..._shared.protected_places import ASIDE
from ._git_files import open_up
from ._own_files import folder_of

_MOST_COMPARED = 200
_MAX_COMPARED = 1 << 20


@attrs.frozen
class Aside:
    """A place that was renamed.

    Attributes:
        path: The place.
        name: Its name now, in the same folder.
        reason: Why it is protected.
        state: What was in it, see `signature`.
    """

    path: str
    name: str
    reason: str
    state: tuple[Any, ...]

    def put_back(self) -> bool:
        """Give it its name again; returns False if something else has it now, or if it was changed or is gone."""
        name = os.path.basename(self.path)  # noqa: PTH119 - text in
        with contextlib.suppress(OSError), folder_of(self.path) as folder:
            is_same = signature(self.name, folder) == self.state
            if is_same and not _exists(name, folder):
                os.rename(self.name, name, src_dir_fd=folder, dst_dir_fd=folder)
                return True
        return False


def keep_aside(path: str, reason: str) -> Aside:
    """Rename a file or folder so that nothing finds it by its name.

    Raises:
        OSError: It cannot be renamed, or a link is on the way to it.
    """
    name = os.path.basename(path)  # noqa: PTH119 - text in
    with folder_of(path) as folder:
        if not os.access(f"/proc/self/fd/{folder}", os.W_OK):
            open_up(os.path.dirname(path))  # noqa: PTH120 - text in, text out
        aside = f"{name}{ASIDE}"
        if len(os.fsencode(aside)) > 255 or _exists(aside, folder):
            aside = f"{os.fsdecode(os.fsencode(name)[:150])}.{secrets.token_hex(8)}{ASIDE}"
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        return Aside(path, aside, reason, signature(aside, folder))


def signature(path: str, folder: int | None = None) -> tuple[Any, ...]:
    """Return what changes if anyone changes a place.

    Args:
        path: The place.
        folder: The open folder that the path starts from, if it is relative.
    """
    pending, result = [path], list[Any]()
    for each in pending:  # grows
        try:
            found = os.lstat(each, dir_fd=folder)
        except OSError:
            continue
        result.append((each, found.st_ino, found.st_mode, found.st_ctime_ns))
        if stat.S_ISDIR(found.st_mode):
            with contextlib.suppress(OSError):
                pending += [f"{each}/{name}" for name in _names_in(each, folder)]
    return tuple(result)


def _names_in(path: str, folder: int | None) -> list[str]:
    descriptor = os.open(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
    )
    try:
        return sorted(os.listdir(descriptor))  # noqa: PTH208 - by its descriptor
    finally:
        os.close(descriptor)


def _exists(name: str, folder: int) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def content(path: str) -> str | None:
    """Return what two places of the same name and content have in common; None for a large one, and for one with links.

    A work tree or a clone has the places of its repository once more. That gives nobody anything new.
    """
    pending, left = [path], _MAX_COMPARED
    digest = hashlib.sha256(os.fsencode(path.rpartition("/")[2]))
    for each in pending:  # grows
        try:
            descriptor = os.open(
                each, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            )
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                names = sorted(os.listdir(descriptor))  # noqa: PTH208 - text
                pending += [f"{each}/{name}" for name in names]
                data = os.fsencode("\0".join(names))
            elif stat.S_ISREG(found.st_mode) and found.st_size <= left and found.st_nlink == 1:
                data = os.read(descriptor, found.st_size + 1)
                left -= len(data)
            else:
                return None
        finally:
            os.close(descriptor)
        if len(pending) > _MOST_COMPARED:
            return None
        digest.update(f"{found.st_mode} {len(data)} ".encode() + data)
    return digest.hexdigest()
