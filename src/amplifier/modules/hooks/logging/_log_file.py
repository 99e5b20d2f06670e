"""The file of a log: accessible to its owner only, with one write per line, so that no line is written in part.

Every call blocks. A worker thread opens the file; lines are written in the event loop's thread, because passing them to
another thread costs many times as much as a write to the page cache, and data in the page cache survive a kill of the process.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from amplifier._regular_file import make_folders

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_ATTEMPTS = 100
"""How often a writer tries to get the shared lock while another one renames files, which takes microseconds."""


# ── rotation ──────────────────────────────────────────────────────────────────────────────────────
# Rotation of a log that several sessions and processes may write: ``events.jsonl`` becomes ``events.jsonl.1``, and so
# on.
#
# A writer holds ``events.jsonl.lock`` (flock) shared while it writes a line, and exclusively while it renames the
# files. No call waits for the lock, because the event loop would wait with it: if another writer has it, the log is
# rotated with a later line.


class Rotation:
    """The old files of a log.

    Args:
        path: The newest file.
        max_bytes: The size that no file exceeds, unless a single line does.
        keep: How many old files there are at most.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.max_bytes = max_bytes
        self._path = path
        self._keep = keep
        self._lock: int | None = None

    def open(self) -> None:
        """Open the lock.

        Raises:
            OSError: The system refuses, or has no file locks.
        """
        if fcntl is None:
            raise OSError("max_bytes needs file locks (flock), which this system does not have")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._lock = os.open(self._path.with_name(f"{self._path.name}.lock"), flags, 0o600)

    def close(self) -> None:
        """Close the lock; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[bool]:
        """Hold the lock, as the only writer or so that no other one rotates; yields whether it is held.

        A line is written all the same if another writer does not come to an end of rotating: to the file that was the newest a
        moment ago.
        """
        how, attempts = (fcntl.LOCK_EX, 1) if alone else (fcntl.LOCK_SH, _ATTEMPTS)
        lock = self._lock
        is_held = False
        for _ in range(attempts if lock is not None else 0):
            with suppress(BlockingIOError):
                fcntl.flock(lock, how | fcntl.LOCK_NB)  # type: ignore[arg-type]  # not None
                is_held = True
                break
        try:
            yield is_held
        finally:
            if is_held and lock is not None:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def rotate(self) -> None:
        """Give the newest file the number 1, and the others one more; those beyond the limit are removed.

        Raises:
            OSError: The system refuses; every file still has a name, and no line is lost.
        """
        numbers = self._numbers()
        free = next(number for number in range(1, len(numbers) + 2) if number not in numbers)
        for number in range(min(free, self._keep) - 1, 0, -1):
            self._part(number).replace(self._part(number + 1))
        self._path.replace(self._part(1))
        for number in numbers:
            if number > self._keep:
                self._part(number).unlink(missing_ok=True)

    def _numbers(self) -> set[int]:
        pattern = re.compile(rf"{re.escape(self._path.name)}\.([1-9][0-9]{{0,5}})")
        found = (pattern.fullmatch(each.name) for each in self._path.parent.iterdir())
        return {int(match[1]) for match in found if match is not None}

    def _part(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class EventFile:
    """A file to which this session, and perhaps others, append lines.

    Args:
        path: The file; it and its directories are created if missing.
        rotation: Renames the file when it is full.

    Attributes:
        rotation_error: Why the file was not rotated the last time it was full.
    """

    def __init__(self, path: Path, rotation: Rotation | None = None) -> None:
        self.path = path
        self.rotation_error: OSError | None = None
        self._rotation = rotation
        self._file: int | None = None
        self._needs_newline = False

    @property
    def is_open(self) -> bool:
        """Whether lines can be written."""
        return self._file is not None

    def open(self) -> None:
        """Open the file.

        Raises:
            OSError: The file cannot be opened, or is not a regular file.
        """
        make_folders(self.path.parent)
        if self._rotation is not None:
            self._rotation.open()
        try:
            self._newest_file(None)
        except BaseException:
            self.close()
            raise

    def _open_file(self) -> tuple[int, int]:
        # A symbolic link must not redirect the events, and a FIFO without a reader must not block.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o600)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self.path))
        except BaseException:
            os.close(file)
            raise
        return file, found.st_size

    def append(self, line: bytes) -> None:
        """Write one line, its newline included.

        Raises:
            OSError: The line was not written, or only its beginning, which then stays as a line of its own.
        """
        if self._file is None:
            raise OSError(errno.EBADF, "not open", str(self.path))
        if self._rotation is None:
            self._write(self._file, line)
            return
        if self._is_full(self._rotation, self._file, line) and self._append_to_new_file(self._rotation, line):
            return
        with self._rotation.held(alone=False):
            self._write(self._newest_file(self._file), line)

    def _append_to_new_file(self, rotation: Rotation, line: bytes) -> bool:
        """Rotate, unless another writer has, and write; False if another writer is busy."""
        with rotation.held(alone=True) as is_alone:
            if not is_alone:
                return False
            file = self._newest_file(self._file)
            if self._is_full(rotation, file, line):
                try:
                    rotation.rotate()
                    self.rotation_error = None
                except OSError as error:
                    self.rotation_error = error
                file = self._newest_file(file)
            self._write(file, line)
        return True

    def _is_full(self, rotation: Rotation, file: int, line: bytes) -> bool:
        size = os.fstat(file).st_size
        return size > 0 and size + len(line) > rotation.max_bytes

    def _newest_file(self, file: int | None) -> int:
        """The file that has the log's name now: the open one, or the one that a rotation has put there.

        What a killed writer left of a line is never cut off: it looks the same as a line that another session is writing now.
        """
        if file is not None:
            ours = os.fstat(file)
            try:
                newest = os.lstat(self.path)
                if (newest.st_dev, newest.st_ino) == (ours.st_dev, ours.st_ino):
                    return file
            except FileNotFoundError:
                pass
        new, size = self._open_file()
        if file is not None:
            os.close(file)
        self._file = new
        self._needs_newline = size > 0 and os.pread(new, 1, size - 1) != b"\n"
        return new

    def _write(self, file: int, line: bytes) -> None:
        data = b"\n" + line if self._needs_newline else line
        written = os.write(file, data)
        if written == len(data):
            self._needs_newline = False
            return
        self._needs_newline = True
        raise OSError(errno.ENOSPC, "only part of a line could be written", str(self.path))

    def close(self) -> None:
        """Close the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        if self._rotation is not None:
            self._rotation.close()
