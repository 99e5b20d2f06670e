"""Rename files that a command made and that control programs, until a person allows them."""

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
from ._protected_paths import folder_of

_MAX_FILES = 200
_MAX_BYTES = 1 << 20
"""Maximum number of files that are compared, and of their bytes."""


@attrs.frozen
class Aside:
    """A file or folder that was renamed.

    Attributes:
        path: Its former path.
        name: Its new name in the same folder.
        reason: The reason for its protection.
        state: Its `signature` when it was renamed.
    """

    path: str
    name: str
    reason: str
    state: tuple[Any, ...]

    def put_back(self) -> bool:
        """Restore the former name of the file.

        Returns:
            False if something else has this name now, or if the file was changed or removed.
        """
        name = os.path.basename(self.path)  # noqa: PTH119 — text in
        with contextlib.suppress(OSError), folder_of(self.path) as folder:
            is_same = signature(self.name, folder) == self.state
            if is_same and not _exists(name, folder):
                os.rename(self.name, name, src_dir_fd=folder, dst_dir_fd=folder)
                return True
        return False


def keep_aside(path: str, reason: str) -> Aside:
    """Rename a file or folder, so that no program finds it by its name.

    Raises:
        OSError: The file can't be renamed, or a link is on the way to it.
    """
    name = os.path.basename(path)  # noqa: PTH119 — text in
    with folder_of(path) as folder:
        if not os.access(f"/proc/self/fd/{folder}", os.W_OK):
            open_up(os.path.dirname(path))  # noqa: PTH120 — text in, text out
        aside = f"{name}{ASIDE}"
        if len(os.fsencode(aside)) > 255 or _exists(aside, folder):
            aside = f"{os.fsdecode(os.fsencode(name)[:150])}.{secrets.token_hex(8)}{ASIDE}"
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        return Aside(path, aside, reason, signature(aside, folder))


def signature(path: str, folder: int | None = None) -> tuple[Any, ...]:
    """Return the metadata of a file, or of a folder with everything in it. Any change alters it.

    Args:
        path: The file or folder.
        folder: The descriptor of the folder that a relative path starts from.
    """
    pending, result = [path], list[Any]()
    for current in pending:  # grows
        try:
            info = os.lstat(current, dir_fd=folder)
        except OSError:
            continue
        result.append((current, info.st_ino, info.st_mode, info.st_ctime_ns))
        if stat.S_ISDIR(info.st_mode):
            with contextlib.suppress(OSError):
                pending += [f"{current}/{name}" for name in _names_in(current, folder)]
    return tuple(result)


def _names_in(path: str, folder: int | None) -> list[str]:
    descriptor = os.open(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
    )
    try:
        return sorted(os.listdir(descriptor))  # noqa: PTH208 — by its descriptor
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


def content_digest(path: str) -> str | None:
    """Return a digest of the name and content of a file or folder.

    A work tree or a clone contains copies of the protected files of its repository, which are
    harmless.

    Returns:
        The digest, or None if there is too much to read, or a link in it.
    """
    pending, left = [path], _MAX_BYTES
    digest = hashlib.sha256(os.fsencode(path.rpartition("/")[2]))
    for current in pending:  # grows
        try:
            descriptor = os.open(
                current, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            )
        except OSError:
            return None
        try:
            info = os.fstat(descriptor)
            if stat.S_ISDIR(info.st_mode):
                names = sorted(os.listdir(descriptor))  # noqa: PTH208 — text
                pending += [f"{current}/{name}" for name in names]
                data = os.fsencode("\0".join(names))
            elif stat.S_ISREG(info.st_mode) and info.st_size <= left and info.st_nlink == 1:
                data = os.read(descriptor, info.st_size + 1)
                left -= len(data)
            else:
                return None
        finally:
            os.close(descriptor)
        if len(pending) > _MAX_FILES:
            return None
        digest.update(f"{info.st_mode} {len(data)} ".encode() + data)
    return digest.hexdigest()
