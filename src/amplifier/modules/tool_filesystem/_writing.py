"""Replaces a file atomically: the file has the old content or the new one, also when the call is cancelled.

The new content goes into a file in the same directory, under a name that cannot be predicted, and is renamed into place by directory
descriptor, so nothing is ever written through a link. Blocking; runs in a worker thread.

Limits: permission bits and, where allowed, owner are kept; access lists and extended attributes are not. A process that
is killed outright may leave a file ``.amplifier-….tmp``. Directories made on the way stay.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat

import attrs

from .._confined_paths import AccessRoots, ConfinedPath, open_parent, refuse_unless_regular
from .._tool_base import Stop, ToolFailure, shown

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_PIECE = 1 << 20


@attrs.frozen
class Version:
    """What a file was when it was read, to notice that it is another one now."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, info: os.stat_result) -> Version:
        """The version the system describes."""
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


@attrs.frozen
class Written:
    """What was done.

    Attributes:
        place: The file, without links.
        size: Bytes it has now.
        created: Whether it is new.
    """

    place: ConfinedPath
    size: int
    created: bool


def replace_file(
    access: AccessRoots, place: ConfinedPath, data: bytes, *, stop: Stop, expected: Version | None = None
) -> Written:
    """Give a file new content, and make it and its directories if they are missing.

    Args:
        access: The roots it may be below.
        place: The file.
        data: Its whole content.
        stop: Looked at until the last moment before the file changes, and not afterwards.
        expected: What the content was made from; another version is not overwritten.

    Raises:
        ToolFailure: It is no regular file, has a second name, changed meanwhile, or is outside.
        OSError: It cannot be written.
    """
    directory, place = open_parent(access, place, make=expected is None)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, directory)
        name = place.names[-1]
        old = _replaceable(directory, place)
        temporary = f".amplifier-{secrets.token_hex(8)}.tmp"
        # A new file gets what the user's umask leaves; the content of an old one must not be readable by more people
        # than before, not even for a moment.
        file = os.open(temporary, _CREATE, 0o666 if old is None else 0o600, dir_fd=directory)
        try:
            try:
                _fill(file, data, old, stop)
                written = os.fstat(file)
            finally:
                os.close(file)
            stop.check()
            _refuse_if_changed(directory, place, temporary, written, expected)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise
        _sync_directory(directory)
        return Written(place, len(data), created=old is None)


def _replaceable(directory: int, place: ConfinedPath) -> os.stat_result | None:
    """What is there now; None for nothing."""
    try:
        info = os.stat(place.names[-1], dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    refuse_unless_regular(info, place)
    if info.st_nlink > 1:
        raise ToolFailure(
            "HardLink",
            f"{shown(place.path)} has {info.st_nlink} names (hard links), and another may lie outside; it is not written",
        )
    return info


def _fill(file: int, data: bytes, old: os.stat_result | None, stop: Stop) -> None:
    rest = memoryview(data)
    while rest:
        stop.check()
        rest = rest[os.write(file, rest[:_PIECE]) :]
    if old is not None:
        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            with contextlib.suppress(OSError):  # only root may give files away; otherwise this process owns the file
                os.fchown(file, old.st_uid, old.st_gid)
        os.fchmod(file, stat.S_IMODE(old.st_mode) & 0o777)
    os.fsync(file)


def _refuse_if_changed(
    directory: int, place: ConfinedPath, temporary: str, written: os.stat_result, expected: Version | None
) -> None:
    found = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
    if not os.path.samestat(found, written):
        raise ToolFailure("Changed", f"{shown(place.path)}: its directory is being tampered with; nothing was changed")
    now = _replaceable(directory, place)
    if expected is not None and (now is None or Version.of(now) != expected):
        raise ToolFailure("Changed", f"{shown(place.path)} was changed by another process meanwhile; read it again")


def _sync_directory(directory: int) -> None:
    """Make the new name durable, where the system can; the content is."""
    with contextlib.suppress(OSError):
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fsync(listing)
        finally:
            os.close(listing)
