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
from typing import Any, final

from amplifier.errors import AmplifierError, PlanError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

logger: logging.Logger = logging.getLogger("amplifier.store")

LOCK_FILE = "lock"

# Repeats the kernel's rule for session ids: the id becomes part of a path, and a session need not be the kernel's.
_SESSION_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")

WRITE = stat.S_IWGRP | stat.S_IWOTH
EVERYTHING = stat.S_IRWXG | stat.S_IRWXO


class SessionLockedError(AmplifierError):
    """Another session, in this process or another, has the conversation open; a conversation has one writer.

    Attributes:
        path: The session's folder.
        holder: The process that has it open, in words, where it is known.
    """

    def __init__(self, path: Path, holder: str | None = None) -> None:
        who = f" ({holder})" if holder else ""
        super().__init__(
            f"{path}: another session has this conversation open{who}; close that session first, or use another session id"
        )
        self.path = path
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.holder), self.__dict__)


class UnsafeFolderError(AmplifierError):
    """Another user can read or change what is stored, and this process cannot or should not take that right away.

    Attributes:
        path: The folder or file.
        reason: What is wrong with it.
        fix: A command that repairs it.
    """

    def __init__(self, path: Path, reason: str, fix: str) -> None:
        super().__init__(
            f"{path}: {reason}; the conversation was not opened, because another user could have written it: "
            f"use another folder or session id, or, if you trust what is in it, run: {fix}"
        )
        self.path = path
        self.reason = reason
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.reason, self.fix), self.__dict__)


def check_session_id(session_id: Any) -> str:
    """Refuse a session id that cannot be the name of a directory.

    Raises:
        PlanError: It is not a session id.
    """
    if not isinstance(session_id, str) or _SESSION_ID.fullmatch(session_id) is None:
        rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
        raise PlanError([("session_id", f"{rule}; got {ascii(session_id)[:80]}")])
    return session_id


def make_private_folder(folder: Path, taken_away: int = EVERYTHING) -> None:
    """Make a folder for its owner alone, and every missing one above it; take rights of other users away from one that is there.

    Args:
        folder: Its path.
        taken_away: Which rights: `EVERYTHING`, or only `WRITE`.

    Raises:
        UnsafeFolderError: Other users could have put files there, or could replace the folder.
        OSError: The system refuses; a symbolic link is not followed.
    """
    missing = []
    existing = folder
    while not existing.exists() and not existing.is_symlink():
        missing.append(existing)
        existing = existing.parent
    for path in reversed(missing):
        path.mkdir(0o700, exist_ok=True)  # another session may have been faster
        sync_folder(path.parent)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _refuse_replaceable(folder)
        close_to_others(os.fstat(descriptor), folder, taken_away)
    finally:
        os.close(descriptor)


def _refuse_replaceable(folder: Path) -> None:
    above = folder.parent.stat()
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(above.st_mode)
        reason = f"every user may rename what is in it (mode {mode:04o})"
        raise UnsafeFolderError(folder.parent, reason, f"chmod o-w {folder.parent}")


def close_to_others(found: os.stat_result, path: Path, taken_away: int = EVERYTHING) -> None:
    """Take rights of other users away from a file or folder of this user, which is no symbolic link.

    Raises:
        UnsafeFolderError: It belongs to another user.
    """
    if found.st_uid != os.geteuid():
        reason = f"it belongs to the user with id {found.st_uid}, not to {os.geteuid()}"
        raise UnsafeFolderError(path, reason, f"chown {os.geteuid()} {path}")
    if found.st_mode & taken_away:
        mode = stat.S_IMODE(found.st_mode)
        path.chmod(mode & ~taken_away)
        logger.warning("%s was open to other users (mode %04o); this is no longer so", path, mode)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@final
class SessionLock:
    """The lock of one session; the system releases it with the process.

    Attributes:
        was_used: The session was open before, here or in another process.
    """

    def __init__(self, folder: Path) -> None:
        """Take it.

        Raises:
            SessionLockedError: Another session has it.
            OSError: The system refuses; a symbolic link is not followed.
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
            with suppress(OSError):  # for the message of whoever comes second
                os.truncate(self._file, 0)
                os.pwrite(
                    self._file,
                    json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(),
                    0,
                )
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Let another session take it."""
        with suppress(OSError):  # closing is not enough if a forked process has it, too
            fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)


def is_locked(file: Path) -> bool:
    """Whether a process has locked a file, which need not be there: that of a session that it has open, for example.

    Raises:
        OSError: The system refuses.
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
    """The process that has a session open, in words, if it can be read."""
    try:
        descriptor = os.open(
            folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        try:
            holder = json.loads(os.pread(descriptor, 1000, 0))
        finally:
            os.close(descriptor)
        return f"process {int(holder['pid'])} on {str(holder['host'])[:100]!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
