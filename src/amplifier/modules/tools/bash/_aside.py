"""Keeps aside what a command made and programs outside obey, until a person allows it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat

import attrs

from ..._shared.protected_places import ASIDE
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
    """

    path: str
    name: str
    reason: str

    def put_back(self) -> bool:
        """Give it its name again; returns False if something else has it now, or if it is gone."""
        name = os.path.basename(self.path)  # noqa: PTH119 - text in
        with contextlib.suppress(OSError), folder_of(self.path) as folder:
            if not _exists(name, folder):
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
        aside = f"{name}{ASIDE}"
        if len(os.fsencode(aside)) > 255 or _exists(aside, folder):
            aside = f"{os.fsdecode(os.fsencode(name)[:150])}.{secrets.token_hex(8)}{ASIDE}"
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    return Aside(path, aside, reason)


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
