"""The files of a log that hooks-logging rotates: ``events.jsonl.2``, ``events.jsonl.1``, ``events.jsonl``, the oldest first."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

import attrs

_PIECE = 1 << 20
_HEAD = 256
_ATTEMPTS = 3
_GONE = (0, 0)


def log_parts(path: Path) -> list[Path]:
    """The files of a log that exist, the oldest first; none if there is no log.

    Args:
        path: The newest one, without a number.

    Raises:
        OSError: The folder cannot be read.
    """
    pattern = re.compile(rf"{re.escape(path.name)}\.([1-9][0-9]{{0,5}})")
    try:
        names = {each.name for each in path.parent.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbered = sorted((int(found[1]) for name in names if (found := pattern.fullmatch(name))), reverse=True)
    parts = [path.with_name(f"{path.name}.{number}") for number in numbered]
    return [*parts, path] if path.name in names else parts


@attrs.frozen
class _Read:
    """How far a file was read: the position after a newline, and its first bytes, because an inode may be used again."""

    position: int
    head: bytes


class LogFollower:
    """Reads the lines of a log in order, also while it is written and rotated; `read` returns what is new.

    A file is known by its inode, so that it stays known when rotation gives it another name.

    Args:
        path: The newest file of the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[int, int], _Read] = {}

    def read(self, *, to_end: bool = True) -> list[bytes]:
        """The lines that were added since the last call, each with its newline; blank ones are left out.

        Args:
            to_end: Also return an incomplete last line, which the next call returns again.

        Raises:
            OSError: A file cannot be read.
        """
        lines: list[bytes] = []
        rests: dict[tuple[int, int], bytes] = {}
        seen: list[tuple[int, int]] = []
        for _ in range(_ATTEMPTS):
            parts = log_parts(self.path)
            seen = [self._read_part(part, lines, rests) for part in parts]
            if seen == [_identity(part) for part in log_parts(self.path)]:
                break  # otherwise a rotation moved a file to a name that was already passed
        self._known = {key: value for key, value in self._known.items() if key in seen}
        return [*lines, *filter(bytes.strip, rests.values())] if to_end else lines

    def _read_part(self, part: Path, lines: list[bytes], rests: dict[tuple[int, int], bytes]) -> tuple[int, int]:
        try:
            file = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
        except FileNotFoundError:
            return _GONE
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(part))
            key = (found.st_dev, found.st_ino)
            known = self._known.get(key, _Read(0, b""))
            if found.st_size < known.position or os.pread(file, len(known.head), 0) != known.head:
                known = _Read(0, b"")
            data = _read_from(file, known.position)
            end = data.rfind(b"\n") + 1
            position = known.position + end
            self._known[key] = _Read(position, os.pread(file, min(position, _HEAD), 0))
        finally:
            os.close(file)
        lines += [line + b"\n" for line in data[:end].split(b"\n") if line.strip()]
        rests[key] = data[end:]
        return key


def _read_from(file: int, position: int) -> bytes:
    pieces: list[bytes] = []
    while piece := os.pread(file, _PIECE, position):
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)


def _identity(part: Path) -> tuple[int, int]:
    try:
        found = part.stat()
    except FileNotFoundError:
        return _GONE
    return (found.st_dev, found.st_ino)
