"""Event logs: the files that hooks-logging rotates, and from a line of them to an event, or to the reason why it cannot be read.

The files are ``events.jsonl.2``, ``events.jsonl.1``, ``events.jsonl``, the oldest first. No line raises.
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

_VERSION: Final = 1
"""The major version of the log format that is understood."""
_LONGEST_UNREAD: Final = 500
_NOT_PAYLOAD: Final = frozenset({"ts", "lvl", "schema", "event", "session_id", "data"})


@attrs.frozen(kw_only=True)
class LogEvent:
    """One event.

    Attributes:
        number: The number of its line, over all logs of a trace.
        session_id: Empty if the line has none.
        at: When, in seconds since 1970; None if the line has no valid time.
        data: The payload.
    """

    number: int
    name: str
    session_id: str
    at: float | None
    level: str
    data: dict[str, Any]

    def text(self, key: str) -> str:
        """A text of the payload; empty if there is none."""
        value = self.data.get(key)
        return value if isinstance(value, str) else ""


@attrs.frozen(kw_only=True)
class UnreadLine:
    """A line that is no event.

    Attributes:
        number: Its number, over all logs of a trace.
        reason: What is wrong with it.
        text: Its beginning.
    """

    number: int
    reason: str
    text: str


def read_line(line: bytes, number: int) -> LogEvent | UnreadLine:
    """Read one line.

    Args:
        line: With or without its newline.
        number: Its number, over all logs of a trace.
    """
    record = _parse(line)
    if record is None:
        # Only a writer that was killed, or is writing at this moment, leaves a line without a newline.
        reason = (
            "not JSON"
            if line.endswith(b"\n")
            else "incomplete: its writer was killed, or is writing it now"
        )
        return _unread(line, number, reason)
    if not isinstance(record, dict):
        return _unread(line, number, f"expected a JSON object, got {type(record).__name__}")
    if (version := _newer_version(record.get("schema"))) is not None:
        reason = f"written in version {version} of the format, expected {_VERSION}.x; read it with a newer release"
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
    text = line[:_LONGEST_UNREAD].decode(errors="backslashreplace").rstrip("\n")
    return UnreadLine(number=number, reason=reason, text=text)


def _parse(line: bytes) -> Any:
    """The JSON value of a line; None if it is no JSON."""
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    try:
        return json.loads(line)  # takes lone surrogates and deeper nesting
    except (ValueError, RecursionError):
        return None


def _newer_version(schema: Any) -> str | None:
    version = schema.get("ver") if isinstance(schema, dict) else None
    if not isinstance(version, str):
        return None
    major = version.partition(".")[0]
    return version[:40] if major.isdecimal() and len(major) < 10 and int(major) > _VERSION else None


def _seconds(value: Any) -> float | None:
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
    numbered = sorted(
        (int(found[1]) for name in names if (found := pattern.fullmatch(name))), reverse=True
    )
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

    def _read_part(
        self, part: Path, lines: list[bytes], rests: dict[tuple[int, int], bytes]
    ) -> tuple[int, int]:
        try:
            file = os.open(
                part, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            )  # a FIFO must not block
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
