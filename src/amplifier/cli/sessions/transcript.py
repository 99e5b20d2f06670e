"""Reads the conversation that context-persistent stores, without locking it: another process may be writing it.

A line is the CRC-32 of the rest in 8 hex digits, then, in conversations since version 2, its number and its link, then the JSON; the first
line describes the file. Reading ends at the first line with a wrong checksum, which in a file that is being written is the
incomplete last one, and at the first line whose number is not the next one: a line was dropped, doubled or moved.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import attrs

__all__ = ["Transcript", "read_steps", "read_transcript"]

FILE_NAME = "messages.log"
STEPS_FILE = "steps.log"


@attrs.frozen
class Transcript:
    """A conversation as far as it can be read.

    Attributes:
        messages: In order.
        unread: Bytes after the last valid line.
    """

    messages: list[dict[str, Any]]
    unread: int = 0

    def turns(self) -> list[int]:
        """The index of the first message of each turn."""
        return [index for index, message in enumerate(self.messages) if message.get("role") == "user"]


def read_transcript(folder: Path) -> Transcript:
    """Read the conversation in a session's folder; an absent file is an empty one.

    Raises:
        OSError: The file exists and cannot be read.
    """
    records, unread = _read_records(folder / FILE_NAME)
    return Transcript([record for record in records[1:] if isinstance(record.get("role"), str)], unread)


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """Read the step journal in a session's folder; an absent file is an empty one.

    Raises:
        OSError: The file exists and cannot be read.
    """
    return [record for record in _read_records(folder / STEPS_FILE)[0][1:] if isinstance(record.get("step"), str)]


def _read_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a file, the first one included, and the number of bytes after the last valid one."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    records: list[dict[str, Any]] = []
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        record = _record(data[position:end], len(records) + 1)
        if record is None:
            break
        records.append(record)
        position = end + 1
    return records, len(data) - position


def _record(line: bytes, number: int) -> dict[str, Any] | None:
    checksum, _, rest = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(rest):
            return None
        if not rest.startswith(b"{"):
            given, _link, rest = rest.split(b" ", 2)
            if int(given) != number:
                return None
        value = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
