"""The file of a log: accessible to its owner only, with one write per line, so that no line is written in part.

Every call blocks. A worker thread opens the file; lines are written in the event loop's thread, because passing them to
another thread costs many times as much as a write to the page cache, and data in the page cache survive a kill of the process.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from ._rotation import Rotation

_BEGINNING = b'{"ts":"'
"""The beginning of every line of this module; an incomplete line that begins differently has another writer."""
_LONGEST_TAIL = 1 << 20


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
        """Open the file, and repair an incomplete last line of a killed writer.

        Raises:
            OSError: The file cannot be opened, or is not a regular file.
        """
        _make_folders(self.path.parent)
        if self._rotation is not None:
            self._rotation.open()
        try:
            file = self._open_file()
            try:
                self._repair(file)
            except BaseException:
                os.close(file)
                raise
        except BaseException:
            self.close()
            raise
        self._file = file

    def _open_file(self) -> int:
        # A symbolic link must not redirect the events, and a FIFO without a reader must not block.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self.path))
        except BaseException:
            os.close(file)
            raise
        return file

    def _repair(self, file: int) -> None:
        """Remove an incomplete line of this module; after any other incomplete line begin a new one."""
        size = os.fstat(file).st_size
        tail = os.pread(file, _LONGEST_TAIL, max(0, size - _LONGEST_TAIL))
        if not tail or tail.endswith(b"\n"):
            return
        torn = tail[tail.rfind(b"\n") + 1 :]
        if len(torn) < size and len(torn) == len(tail):  # longer than any line of this module
            self._needs_newline = True
        elif torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn):
            os.ftruncate(file, size - len(torn))
        else:
            self._needs_newline = True

    def append(self, line: bytes) -> None:
        """Write one line, its newline included.

        Raises:
            OSError: The line was not written; no part of it is in the file.
        """
        if self._file is None:
            raise OSError(errno.EBADF, "not open", str(self.path))
        if self._rotation is None:
            self._write(self._file, line)
            return
        if self._is_full(self._rotation, self._file, line) and self._append_to_new_file(self._rotation, line):
            return
        with self._rotation.shared():
            self._write(self._newest_file(self._file), line)

    def _append_to_new_file(self, rotation: Rotation, line: bytes) -> bool:
        """Rotate, unless another writer has, and write; False if another writer is busy."""
        with rotation.alone() as is_alone:
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
        """The file that has the log's name now: the open one, or the one that a rotation has put there."""
        if file is not None:
            ours = os.fstat(file)
            try:
                newest = os.lstat(self.path)
                if (newest.st_dev, newest.st_ino) == (ours.st_dev, ours.st_ino):
                    return file
            except FileNotFoundError:
                pass
        new = self._open_file()
        size = os.fstat(new).st_size
        self._needs_newline = size > 0 and os.pread(new, 1, size - 1) != b"\n"
        if file is not None:
            os.close(file)
        self._file = new
        return new

    def _write(self, file: int, line: bytes) -> None:
        data = b"\n" + line if self._needs_newline else line
        written = os.write(file, data)
        if written == len(data):
            self._needs_newline = False
            return
        self._take_back(file, written)
        raise OSError(errno.ENOSPC, "only part of a line could be written", str(self.path))

    def _take_back(self, file: int, written: int) -> None:
        """Remove a partly written line, unless another session's line already follows it."""
        end = os.lseek(file, 0, os.SEEK_CUR)  # the end of the write, with O_APPEND too
        if os.fstat(file).st_size == end:
            os.ftruncate(file, end - written)
        else:
            self._needs_newline = True

    def close(self) -> None:
        """Close the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        if self._rotation is not None:
            self._rotation.close()


def _make_folders(folder: Path) -> None:
    """Create missing directories for the owner only; `Path.mkdir` applies the mode to the last one alone."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        with suppress(FileExistsError):  # another session created it
            one.mkdir(mode=0o700)
