"""The files of a conversation: append-only, on disk before a call returns, one writer.

All calls block; `_context` makes them in a worker thread, one at a time. Everything happens relative to the open
folder, so that neither a change of directory nor a link put in the way leads elsewhere.

    <folder>/            0700
    ├── messages.log     0600   see `_log_records`
    ├── messages.log.new        a whole new conversation, until it takes the place of the old one
    ├── steps.log        0600   the step journal, while a turn may have to be resumed from it; see `_step_journal`
    └── lock             0600   held (flock) as long as the conversation is open, and names the process; stays behind, empty

Limits: file systems that lie about fsync are believed. Where the locks of two machines do not meet, as on some network file
systems, two writers are noticed only when one finds the file longer than it left it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from amplifier.errors import AmplifierError

from ._errors import LogDamagedError, LogLockedError, UnsafeFolderError
from ._log_records import CONVERSATION, Chain, LogKind, new_file, scan

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("amplifier.modules.context-persistent")

_LOCK = "lock"


class MessageLog:
    """One file of a conversation.

    Args:
        folder: The conversation's own; made, readable for its owner only, if it does not exist.
        session_id: The session of the conversation.
        kind: Which file. The conversation itself takes the lock; other files are opened while it is open.

    Attributes:
        path: The file.
        generation: How often the file was replaced, over all sessions.
    """

    def __init__(self, folder: Path, session_id: str, kind: LogKind = CONVERSATION) -> None:
        self._folder_path = folder
        self._session_id = session_id
        self._kind = kind
        self._new = f"{kind.file}.new"
        self._folder: int | None = None
        self._lock: int | None = None
        self._file: int | None = None
        self._size = 0
        self._has_rest = False
        self._chain = Chain(is_linked=False)
        self.path = folder / kind.file
        self.generation = 0

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self._file is not None

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self._size

    def open(self) -> list[dict[str, Any]]:
        """Take the conversation for this writer and read the file; what a crash left half written is cut off.

        Raises:
            LogLockedError: Another session has it open.
            LogDamagedError: The file is not as it was written.
            UnsafeFolderError: The folder or the file belongs to another user.
            OSError: The system refuses.
        """
        try:
            self._folder = _open_folder(self._folder_path)
            if self._kind is CONVERSATION:
                self._take_lock(self._folder)
            with suppress(FileNotFoundError):  # of a replacement that a crash cut short
                os.unlink(self._new, dir_fd=self._folder)
            return self._read(self._folder)
        except BaseException:
            self.close()
            raise

    def _take_lock(self, folder: int) -> None:
        if fcntl is None:
            raise AmplifierError("context-persistent needs file locks (flock), which this system does not have")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogLockedError(self._folder_path, _holder_of(self._lock)) from None
        with suppress(OSError):  # only for the message of whoever comes second
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _read(self, folder: int) -> list[dict[str, Any]]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._file = os.open(self._kind.file, flags, dir_fd=folder)
        except FileNotFoundError:
            self.replace(())
            return []
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise LogDamagedError(self.path, None, "it is not a regular file")
        _refuse_foreign(self._file, self.path)
        data = _read_all(self._file)
        if not data:
            self.replace(())
            return []
        found = scan(data, self.path, self._session_id, self._kind)
        self._size, self.generation, self._chain = found.size, found.generation, found.chain
        if found.torn:
            logger.warning(
                "%s: the last %d bytes are of a %s that was never stored completely; cut off",
                self.path,
                found.torn,
                "message" if self._kind is CONVERSATION else "record",
            )
            self._has_rest = True
            self._cut_rest(self._file)
        return found.records

    def append(self, texts: Sequence[bytes], *, sync: bool = True) -> None:
        """Put records at the end; on return they are on disk, and after an error they are not in the file.

        Args:
            texts: The records as JSON.
            sync: Whether a loss of power must not undo it; the end of the process never does.

        Raises:
            LogDamagedError: Another process changed or removed the file.
            OSError: The system refuses; for example, the disk is full.
        """
        file = self._require_open()
        self._cut_rest(file)
        self._refuse_changed(file)
        data, chain = self._chain.add(texts)
        try:
            _write_all(file, data)
            if sync:
                os.fsync(file)
        except BaseException:
            self._has_rest = True
            with suppress(OSError):  # tried again before the next append
                self._cut_rest(file)
            raise
        self._size += len(data)
        self._chain = chain

    def replace(self, texts: Sequence[bytes]) -> None:
        """Put records, as JSON, in the place of everything: all of them or, after an error, none.

        Raises:
            OSError: The system refuses. If `generation` has changed all the same, the new records are in place and only
                the folder could not be synced.
        """
        if self._folder is None:
            self._require_open()
        data, chain = new_file(self._session_id, self.generation + 1, texts, self._kind)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        new = os.open(self._new, flags, 0o600, dir_fd=self._folder)
        try:
            _write_all(new, data)
            os.fsync(new)
            os.rename(self._new, self._kind.file, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            os.close(new)
            with suppress(OSError):
                os.unlink(self._new, dir_fd=self._folder)
            raise
        old, self._file = self._file, new
        self._size, self._has_rest, self._chain = len(data), False, chain
        self.generation += 1
        if old is not None:
            os.close(old)
        if self._folder is not None:
            os.fsync(self._folder)

    def close(self) -> None:
        """Let go of the conversation; nothing is removed. May be called again."""
        if self._lock is not None and self._file is not None:
            with suppress(OSError):
                os.truncate(self._lock, 0)
        for name in ("_file", "_lock", "_folder"):  # the lock after the file: the next writer finds it at rest
            held: int | None = getattr(self, name)
            setattr(self, name, None)
            if held is not None:
                with suppress(OSError):  # everything was synced before; there is nothing left to lose
                    if name == "_lock" and fcntl is not None:  # closing is not enough if a forked process has it, too
                        fcntl.flock(held, fcntl.LOCK_UN)
                    os.close(held)

    def _require_open(self) -> int:
        if self._file is None:
            raise ValueError(f"{self.path} is not open")
        return self._file

    def _cut_rest(self, file: int) -> None:
        """Cut off what is left of a record that could not be written."""
        if self._has_rest:
            os.ftruncate(file, self._size)
            os.fsync(file)
            self._has_rest = False

    def _refuse_changed(self, file: int) -> None:
        now = os.fstat(file)
        if now.st_nlink == 0:
            raise LogDamagedError(self.path, None, "it was removed while this session had it open")
        if now.st_size != self._size:
            found = f"it has {now.st_size} bytes instead of {self._size}"
            raise LogDamagedError(
                self.path, None, f"another process changed it while this session had it open: {found}"
            )


def _holder_of(lock: int) -> str | None:
    """Which process holds the lock, in words, if it can be read."""
    try:
        holder = json.loads(os.pread(lock, 1000, 0))
        return f"process {int(holder['pid'])} on {str(holder['host'])[:100]!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open_folder(folder: Path) -> int:
    """Open a folder, made for the owner alone if it is missing, and every folder above it that is."""
    missing = []
    existing = folder
    while not existing.exists() and not existing.is_symlink():
        missing.append(existing)
        existing = existing.parent
    for path in reversed(missing):
        path.mkdir(0o700, exist_ok=True)  # another session may have been faster
        _sync_folder(path.parent)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _make_private(descriptor, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_private(descriptor: int, folder: Path) -> None:
    """Take away what other users may do in a folder.

    Raises:
        UnsafeFolderError: Other users could have put files there, or could replace the folder.
    """
    _refuse_foreign(descriptor, folder)
    above = folder.parent.stat()
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise UnsafeFolderError(
            folder.parent,
            f"every user may rename what is in it (mode {_mode(above):04o})",
            f"chmod o-w {folder.parent}",
        )
    found = os.fstat(descriptor)
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        os.fchmod(descriptor, 0o700)
        logger.warning(
            "%s was open to other users (mode %04o); it is now accessible to its owner only", folder, _mode(found)
        )


def _refuse_foreign(descriptor: int, path: Path) -> None:
    owner = os.fstat(descriptor).st_uid
    if owner != os.geteuid():
        raise UnsafeFolderError(
            path, f"it belongs to the user with id {owner}, not to {os.geteuid()}", f"chown {os.geteuid()} {path}"
        )


def _mode(found: os.stat_result) -> int:
    return stat.S_IMODE(found.st_mode)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_all(file: int) -> bytes:
    pieces: list[bytes] = []
    position = 0
    while piece := os.pread(file, 1 << 20, position):
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)


def _write_all(file: int, data: bytes) -> None:
    """One write, unless the system takes less than all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
