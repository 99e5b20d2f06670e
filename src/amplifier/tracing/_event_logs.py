"""Read the event logs that hooks-logging writes and rotates.

The files are ``events.jsonl.2``, ``events.jsonl.1`` and ``events.jsonl``, the oldest first.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

# Supported major version of the log format.
_VERSION: Final = 1
_MAX_UNREAD: Final = 500
_NOT_PAYLOAD: Final = frozenset({"ts", "lvl", "schema", "event", "session_id", "data"})


@attrs.frozen(kw_only=True)
class LogEvent:
    """One event of a log.

    Attributes:
        number: Number of its line, over all logs of a trace.
        name: Name of the event.
        session_id: Id of the session, or an empty text.
        at: Time in seconds since 1970, or None if the line has no valid time.
        level: Level such as ``INFO``, or an empty text.
        data: The payload.
    """

    number: int
    name: str
    session_id: str
    at: float | None
    level: str
    data: dict[str, Any]

    def text(self, key: str) -> str:
        """Return a text of the payload, empty if there is none."""
        value = self.data.get(key)
        return value if isinstance(value, str) else ""


@attrs.frozen(kw_only=True)
class UnreadLine:
    """A line that is not an event.

    Attributes:
        number: Number of the line, over all logs of a trace.
        reason: Description of the problem.
        text: Beginning of the line.
    """

    number: int
    reason: str
    text: str


def read_line(line: bytes, number: int) -> LogEvent | UnreadLine:
    """Read one line without ever raising.

    Args:
        line: The line, with or without its newline.
        number: Number of the line, over all logs of a trace.
    """
    record = _parse(line)
    if record is None:
        is_whole = line.endswith(b"\n")
        incomplete = "incomplete: its writer was killed, or is writing it now"
        return _unread(line, number, "not JSON" if is_whole else incomplete)
    if not isinstance(record, dict):
        return _unread(line, number, f"expected a JSON object, got {type(record).__name__}")
    if (version := _newer_version(record.get("schema"))) is not None:
        reason = (
            f"written in version {version} of the format, expected {_VERSION}.x; "
            "read it with a newer release"
        )
        return _unread(line, number, reason)
    name = record.get("event")
    if not isinstance(name, str) or not name:
        return _unread(line, number, "expected a member 'event' with the name of an event")
    data = record.get("data")
    payload = {key: value for key, value in record.items() if key not in _NOT_PAYLOAD}
    payload.update(data if isinstance(data, dict) else {} if data is None else {"data": data})
    session_id, level = record.get("session_id"), record.get("lvl")
    return LogEvent(
        number=number,
        name=name,
        session_id=session_id if isinstance(session_id, str) else "",
        at=_seconds(record.get("ts")),
        level=level if isinstance(level, str) else "",
        data=payload,
    )


def _unread(line: bytes, number: int, reason: str) -> UnreadLine:
    text = line[:_MAX_UNREAD].decode(errors="backslashreplace").rstrip("\n")
    return UnreadLine(number=number, reason=reason, text=text)


def _parse(line: bytes) -> Any:
    """Return the JSON value of a line, or None if it is not JSON."""
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    # Unlike orjson, this accepts lone surrogates and deeper nesting.
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _newer_version(schema: object) -> str | None:
    version = schema.get("ver") if isinstance(schema, dict) else None
    if not isinstance(version, str):
        return None
    major = version.partition(".")[0]
    return version[:40] if major.isdecimal() and len(major) < 10 and int(major) > _VERSION else None


def _seconds(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


_PIECE = 1 << 20
_HEAD = 256
_ATTEMPTS = 3
_GONE = (0, 0)


def log_parts(path: Path) -> list[Path]:
    """Return the existing files of a log, the oldest first.

    Args:
        path: The newest file, which has no number.

    Raises:
        OSError: The folder cannot be read.
    """
    pattern = re.compile(rf"{re.escape(path.name)}\.([1-9][0-9]{{0,5}})")
    try:
        names = {file.name for file in path.parent.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbers = [int(match[1]) for name in names if (match := pattern.fullmatch(name))]
    parts = [path.with_name(f"{path.name}.{number}") for number in sorted(numbers, reverse=True)]
    return [*parts, path] if path.name in names else parts


@attrs.frozen
class _Progress:
    """The position after the last line that was read from a file.

    Attributes:
        position: The position.
        head: The first bytes of the file, to recognize another file that got its inode.
    """

    position: int
    head: bytes


class LogFollower:
    """Reads the lines of a log in order, even while it is written and rotated.

    A file is identified by its inode, because rotation gives it another name.

    Args:
        path: The newest file of the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[int, int], _Progress] = {}

    def read(self, *, to_end: bool = True) -> list[bytes]:
        """Return the lines that were added since the last call, with their newlines.

        Blank lines are left out.

        Args:
            to_end: Whether to return an incomplete last line. The next call returns it again.

        Raises:
            OSError: A file cannot be read.
        """
        lines: list[bytes] = []
        rests: dict[tuple[int, int], bytes] = {}
        seen: list[tuple[int, int]] = []
        for _ in range(_ATTEMPTS):
            parts = log_parts(self.path)
            seen = [self._read_part(part, lines, rests) for part in parts]
            # If they differ, a rotation may have moved a file to a name that was read before.
            if seen == [_identity(part) for part in log_parts(self.path)]:
                break
        self._known = {key: value for key, value in self._known.items() if key in seen}
        return [*lines, *filter(bytes.strip, rests.values())] if to_end else lines

    def _read_part(
        self, part: Path, lines: list[bytes], rests: dict[tuple[int, int], bytes]
    ) -> tuple[int, int]:
        # O_NONBLOCK keeps a FIFO from blocking.
        try:
            file = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return _GONE
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(part))
            key = (status.st_dev, status.st_ino)
            known = self._known.get(key, _Progress(0, b""))
            if status.st_size < known.position or os.pread(file, len(known.head), 0) != known.head:
                known = _Progress(0, b"")
            data = _read_from(file, known.position)
            end = data.rfind(b"\n") + 1
            position = known.position + end
            self._known[key] = _Progress(position, os.pread(file, min(position, _HEAD), 0))
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
        status = part.stat()
    except FileNotFoundError:
        return _GONE
    return (status.st_dev, status.st_ino)
