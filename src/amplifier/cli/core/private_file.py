"""Replaces files that only their owner may read."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or all of the new one.

    Raises:
        OSError: The system refuses; the old file is unchanged.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # of a file that is open, the system names none
            error.filename = str(path)
        raise
