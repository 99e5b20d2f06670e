"""Reads files that someone else may have put there: in a repository, a session's folder, a package; replaces files of one's own.

What is no regular file is refused instead of waited for: nothing ever comes out of a FIFO that no one writes to, and ``/dev/zero`` has no end.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def irregular_kind(mode: int) -> str | None:
    """What something is that is no regular file; None for a regular one."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def read_file(path: Path, *, most: int | None = None) -> bytes:
    """Read a regular file.

    Args:
        path: Where it is.
        most: Bytes it may have.

    Raises:
        OSError: There is no such file, it is no regular file or too large, or the system refuses.
    """
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_CLOEXEC", 0)
        | getattr(os, "O_NOCTTY", 0)
    )
    descriptor = os.open(path, flags)
    try:
        about = os.fstat(descriptor)
        kind = irregular_kind(about.st_mode)
        if kind is not None:
            raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", str(path))
        if most is not None and about.st_size > most:
            raise OSError(
                errno.EFBIG, f"it has {about.st_size} bytes, expected at most {most}", str(path)
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Make a folder, and every missing one above it, for its owner alone; `Path.mkdir` applies the mode to the last one only.

    Raises:
        OSError: The system refuses.
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(0o700, exist_ok=True)  # another process may have been faster


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, atomically: readers see the old content or all of the new one.

    Raises:
        OSError: The system refuses; the old file is unchanged.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if (
            isinstance(error, OSError) and error.filename is None
        ):  # of a file that is open, the system names none
            error.filename = str(path)
        raise
