"""Read files that others may have created, and replace our own atomically.

Only regular files are read: a FIFO may block forever, and ``/dev/zero`` has no end.
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
    """Return a description of something that is not a regular file, or None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def read_file(path: Path, *, most: int | None = None) -> bytes:
    """Read a regular file.

    Args:
        path: Path of the file.
        most: Maximum size in bytes.

    Raises:
        OSError: The file does not exist, is not a regular file, is too large or cannot be read.
    """
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_CLOEXEC", 0)
        | getattr(os, "O_NOCTTY", 0)
    )
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        kind = irregular_kind(status.st_mode)
        if kind is not None:
            raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", str(path))
        if most is not None and status.st_size > most:
            problem = f"it has {status.st_size} bytes, expected at most {most}"
            raise OSError(errno.EFBIG, problem, str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, accessible only to their owner.

    `Path.mkdir` applies the mode only to the last folder.

    Raises:
        OSError: A folder cannot be created.
    """
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        # Another process may have created it first.
        missing.mkdir(0o700, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically, readable for its owner only.

    Raises:
        OSError: The file cannot be written. The old file is unchanged.
    """
    # The temporary file has mode 0600.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        # Errors of an open file lack the file's name.
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
