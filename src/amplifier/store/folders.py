"""Folders and files that only their owner may use, and the lock of a session."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import final

from amplifier.errors import AmplifierError, PlanError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

logger: logging.Logger = logging.getLogger("amplifier.store")

LOCK_FILE = "lock"

# The kernel has the same rule. It is repeated here because the id becomes part of a path, and not
# every session comes from the kernel.
_SESSION_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")

WRITE = stat.S_IWGRP | stat.S_IWOTH
EVERYTHING = stat.S_IRWXG | stat.S_IRWXO


class SessionLockedError(AmplifierError):
    """The conversation is open in another session of this or another process.

    A conversation has one writer at a time.

    Attributes:
        path: The session's folder.
        holder: Description of the process that has it open, or None if it is unknown.
    """

    def __init__(self, path: Path, holder: str | None = None) -> None:
        process = f" ({holder})" if holder else ""
        super().__init__(
            f"{path}: another session has this conversation open{process}; "
            "close that session first, or use another session id"
        )
        self.path = path
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.holder), self.__dict__)


class UnsafeFolderError(AmplifierError):
    """Another user can read or change stored data, and this process must not revoke those rights.

    Attributes:
        path: The folder or file.
        reason: Description of the problem.
        fix: A command that solves it.
    """

    def __init__(self, path: Path, reason: str, fix: str) -> None:
        super().__init__(
            f"{path}: {reason}; the conversation was not opened, because another user could have "
            "written it: use another folder or session id, or, if you trust its content, "
            f"run: {fix}"
        )
        self.path = path
        self.reason = reason
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.reason, self.fix), self.__dict__)


def check_session_id(session_id: object) -> str:
    """Return a session id if it can be the name of a directory.

    Raises:
        PlanError: The value is not a session id.
    """
    if not isinstance(session_id, str) or _SESSION_ID.fullmatch(session_id) is None:
        rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
        raise PlanError([("session_id", f"{rule}; got {ascii(session_id)[:80]}")])
    return session_id


def make_private_folder(folder: Path, revoked: int = EVERYTHING) -> None:
    """Create a folder and its parents for the owner alone. Revoke other users' rights on it.

    Args:
        folder: Path of the folder.
        revoked: Rights of other users to revoke: `EVERYTHING`, or only `WRITE`.

    Raises:
        UnsafeFolderError: Other users could have put files there, or could replace the folder.
        OSError: The folder cannot be created or opened. A symbolic link is not followed.
    """
    missing = []
    existing = folder
    while not existing.exists() and not existing.is_symlink():
        missing.append(existing)
        existing = existing.parent
    for path in reversed(missing):
        # Another session may have created it in the meantime.
        path.mkdir(0o700, exist_ok=True)
        sync_folder(path.parent)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _refuse_replaceable(folder)
        close_to_others(os.fstat(descriptor), folder, revoked)
    finally:
        os.close(descriptor)


def _refuse_replaceable(folder: Path) -> None:
    parent = folder.parent.stat()
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(parent.st_mode)
        reason = f"every user may rename what is in it (mode {mode:04o})"
        raise UnsafeFolderError(folder.parent, reason, f"chmod o-w {folder.parent}")


def close_to_others(status: os.stat_result, path: Path, revoked: int = EVERYTHING) -> None:
    """Revoke rights of other users on a file or folder of this user.

    Args:
        status: Its status.
        path: Its path, which must not be a symbolic link.
        revoked: The rights to revoke.

    Raises:
        UnsafeFolderError: The file or folder belongs to another user.
    """
    if status.st_uid != os.geteuid():
        reason = f"it belongs to the user with id {status.st_uid}, not to {os.geteuid()}"
        raise UnsafeFolderError(path, reason, f"chown {os.geteuid()} {path}")
    if status.st_mode & revoked:
        mode = stat.S_IMODE(status.st_mode)
        path.chmod(mode & ~revoked)
        logger.warning("%s was open to other users (mode %04o); this is no longer so", path, mode)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it are on disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@final
class SessionLock:
    """The lock of one session. The system releases it when the process ends.

    Attributes:
        was_used: Whether the session was open before, in this or another process.
    """

    def __init__(self, folder: Path) -> None:
        """Acquire the lock.

        Raises:
            SessionLockedError: Another session holds the lock.
            OSError: The file cannot be opened. A symbolic link is not followed.
        """
        if fcntl is None:
            raise AmplifierError(
                "the store of sessions needs file locks (flock), which this system does not have"
            )
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._file = os.open(folder / LOCK_FILE, flags, 0o600)
        try:
            close_to_others(os.fstat(self._file), folder / LOCK_FILE)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SessionLockedError(folder, lock_holder(folder)) from None
            self.was_used: bool = os.fstat(self._file).st_size > 0
            # The error in another session names this process.
            holder = {"pid": os.getpid(), "host": socket.gethostname()}
            with suppress(OSError):
                os.truncate(self._file, 0)
                os.pwrite(self._file, json.dumps(holder).encode(), 0)
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Release the lock."""
        # Closing the file is not enough if a forked process has it open as well.
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)


def is_locked(file: Path) -> bool:
    """Return whether a process has locked a file. A missing file is not locked.

    Raises:
        OSError: The file cannot be examined.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_holder(folder: Path) -> str | None:
    """Describe the process that has a session open. Return None if the process is unknown."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(folder / LOCK_FILE, flags)
        try:
            holder = json.loads(os.pread(descriptor, 1000, 0))
        finally:
            os.close(descriptor)
        return f"process {int(holder['pid'])} on {str(holder['host'])[:100]!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
