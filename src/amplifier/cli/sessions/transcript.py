"""Reads the conversation that context-persistent keeps, without taking it: it may be another process's at the moment.

A line is the CRC-32 of the JSON in 8 hex digits, a space, and the JSON; the first one describes the file. Reading ends at the first
line that does not check, which in a file that is being written is the one being written.

Above: the session store. Below: nothing of ours; the module itself is for writing.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import attrs

__all__ = ["Transcript", "read_transcript"]

FILE_NAME = "messages.log"


@attrs.frozen
class Transcript:
    """A conversation as far as it can be read.

    Attributes:
        messages: In order.
        unread: Bytes behind the last line that checks.
    """

    messages: list[dict[str, Any]]
    unread: int = 0

    def turns(self) -> list[int]:
        """The index of the message each turn begins with."""
        return [index for index, message in enumerate(self.messages) if message.get("role") == "user"]


def read_transcript(folder: Path) -> Transcript:
    """Read the conversation in a session's folder; an absent file is an empty one.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        data = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return Transcript([])
    records: list[dict[str, Any]] = []
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        record = _record(data[position:end])
        if record is None:
            break
        records.append(record)
        position = end + 1
    return Transcript([record for record in records[1:] if isinstance(record.get("role"), str)], len(data) - position)


def _record(line: bytes) -> dict[str, Any] | None:
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
