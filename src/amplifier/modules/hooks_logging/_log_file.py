"""The file of a log: opened for its owner only, one write per line, so that a line is there whole or not at all.

Every call blocks. Opening is done in a worker thread; a line is written in place, because handing it to a thread costs
many times what writing to the system's cache does, and because what the system has survives a kill of the process.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_BEGINNING = b'{"ts":"'
"""How every line of ours begins; a torn end that begins otherwise belongs to somebody else and is left alone."""
_LONGEST_TAIL = 1 << 20


class EventFile:
    """A file that lines are appended to, by this and perhaps other sessions.

    Args:
        path: The file; it and its folders are made if need be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._needs_newline = False

    @property
    def is_open(self) -> bool:
        """Whether lines can be written."""
        return self._file is not None

    def open(self) -> None:
        """Open it, and repair the end that a killed writer may have left.

        Raises:
            OSError: The system refuses, or there is something else than a regular file.
        """
        _make_folders(self.path.parent)
        # Neither a link put in its place nor a FIFO without a reader may decide where the events go or make us wait.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self.path))
            self._mend(file)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _mend(self, file: int) -> None:
        """Cut a line of ours that has no end; begin a new line after anything else that has none."""
        size = os.fstat(file).st_size
        tail = os.pread(file, _LONGEST_TAIL, max(0, size - _LONGEST_TAIL))
        if not tail or tail.endswith(b"\n"):
            return
        torn = tail[tail.rfind(b"\n") + 1 :]
        if len(torn) < size and len(torn) == len(tail):  # longer than any line of ours
            self._needs_newline = True
        elif torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn):
            os.ftruncate(file, size - len(torn))
        else:
            self._needs_newline = True

    def append(self, line: bytes) -> None:
        """Write one line, its newline included.

        Raises:
            OSError: It was not written; nothing of it is left.
        """
        if self._file is None:
            raise OSError(errno.EBADF, "not open", str(self.path))
        data = b"\n" + line if self._needs_newline else line
        written = os.write(self._file, data)
        if written == len(data):
            self._needs_newline = False
            return
        self._take_back(self._file, written)
        raise OSError(errno.ENOSPC, "only part of a line could be written", str(self.path))

    def _take_back(self, file: int, written: int) -> None:
        """Remove the beginning of a line, unless another session's line already follows it."""
        end = os.lseek(file, 0, os.SEEK_CUR)  # where our write ended, with O_APPEND too
        if os.fstat(file).st_size == end:
            os.ftruncate(file, end - written)
        else:
            self._needs_newline = True

    def close(self) -> None:
        """Close it; more than once is fine."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _make_folders(folder: Path) -> None:
    """Make what is missing, for the owner only; `Path.mkdir` would do so for the last one alone."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        with suppress(FileExistsError):  # another session was faster
            one.mkdir(mode=0o700)
