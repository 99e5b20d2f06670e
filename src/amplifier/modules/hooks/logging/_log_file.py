"""The file of a log: accessible to its owner only, with one write per line, so that no line is written in part.

Every call blocks. A worker thread opens the file; lines are written in the event loop's thread, because passing them to
another thread costs many times as much as a write to the page cache, and data in the page cache survive a kill of the process.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from pathlib import Path

from amplifier._regular_file import make_folders

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("amplifier.modules.hooks-logging")


class EventFile:
    """A file to which this session, and perhaps others, append lines.

    With a limit, ``events.jsonl`` becomes ``events.jsonl.1`` when it is full, and so on. Whoever renames it holds its lock (flock), for which
    no one waits, because the event loop would wait, too: the others go on writing to it, and then find that it has another name.

    Args:
        path: The file; it and its directories are created if missing.
        max_bytes: The size at which it is renamed; None for no limit.
        keep: How many renamed files there are at most.
    """

    def __init__(self, path: Path, max_bytes: int | None = None, keep: int = 5) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: int | None = None
        self._needs_newline = False
        self._has_warned = False

    @property
    def is_open(self) -> bool:
        """Whether lines can be written."""
        return self._file is not None

    def open(self) -> None:
        """Open the file.

        Raises:
            OSError: The file cannot be opened, is not a regular file, or has a limit on a system without file locks.
        """
        if self._max_bytes is not None and fcntl is None:
            raise OSError("max_bytes needs file locks (flock), which this system does not have")
        make_folders(self.path.parent)
        self._open_newest()

    def _open_newest(self) -> int:
        # A symbolic link must not redirect the events, and a FIFO without a reader must not block.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o600)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self.path))
            self._needs_newline = found.st_size > 0 and os.pread(file, 1, found.st_size - 1) != b"\n"
        except BaseException:
            os.close(file)
            raise
        self.close()
        self._file = file
        return file

    def append(self, line: bytes) -> None:
        """Write one line, its newline included.

        Raises:
            OSError: The line was not written, or only its beginning, which then stays as a line of its own.
        """
        file = self._file
        if file is None:
            raise OSError(errno.EBADF, "not open", str(self.path))
        if self._max_bytes is not None:
            file = self._file_with_room(file, self._max_bytes - len(line))
        data = b"\n" + line if self._needs_newline else line
        written = os.write(file, data)
        self._needs_newline = written != len(data)
        if self._needs_newline:
            raise OSError(errno.ENOSPC, "only part of a line could be written", str(self.path))

    # ── rotation ──

    def _file_with_room(self, file: int, most: int) -> int:
        """The newest file, which is another one if a line makes this one too large, or another writer has renamed it."""
        if not self._is_newest(file):
            file = self._open_newest()
        size = os.fstat(file).st_size
        if size == 0 or size + self._needs_newline <= most:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                if self._is_newest(file):
                    self._rename()
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)
        except BlockingIOError:  # another writer renames it; this line still goes into it
            pass
        except OSError as error:
            if not self._has_warned:
                logger.warning("%s cannot be rotated: %s; it grows beyond max_bytes", self.path, error)
            self._has_warned = True
        return file if self._is_newest(file) else self._open_newest()

    def _is_newest(self, file: int) -> bool:
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(file))
        except FileNotFoundError:
            return False

    def _rename(self) -> None:
        """Give the newest file the number 1, and the others one more; those beyond the limit are removed.

        Raises:
            OSError: The system refuses; every file still has a name, and no line is lost.
        """
        pattern = re.compile(rf"{re.escape(self.path.name)}\.([1-9][0-9]{{0,5}})")
        found = (pattern.fullmatch(each.name) for each in self.path.parent.iterdir())
        numbers = {int(match[1]) for match in found if match is not None}
        for number in numbers:
            if number > self._keep:
                self._part(number).unlink(missing_ok=True)
        free = next(number for number in range(1, len(numbers) + 2) if number not in numbers)
        for number in range(min(free, self._keep) - 1, 0, -1):
            self._part(number).replace(self._part(number + 1))
        self.path.replace(self._part(1))  # last: from now on another writer may rename the next file

    def _part(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        """Close the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
