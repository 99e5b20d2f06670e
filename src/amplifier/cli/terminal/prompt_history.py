"""The messages entered in earlier chats, kept in a file of the CLI's home folder: one JSON string per line, oldest first."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from amplifier.cli.core.private_file import replace_file

__all__ = ["PromptHistory"]

MOST_ENTRIES = 1000
"""Entries that are kept; the file is cut back to them when it holds twice as many."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class PromptHistory:
    """The history file. Only its owner may read it; a chat works without it if the system refuses to read or write it.

    Args:
        path: The file; made with the first entry, and its folder with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[str]:
        """The latest entries, oldest first; lines that are no entries are left out."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        if len(lines) >= 2 * MOST_ENTRIES:
            with suppress(OSError):
                replace_file(self._path, b"\n".join(lines[-MOST_ENTRIES:]) + b"\n")
        return [entry for line in lines[-MOST_ENTRIES:] if (entry := _entry(line)) is not None]

    def add(self, entry: str) -> None:
        """Append an entry in one write, so that entries of several chats do not mix."""
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, _APPEND, 0o600)
            try:
                os.write(descriptor, json.dumps(entry).encode() + b"\n")
            finally:
                os.close(descriptor)


def _entry(line: bytes) -> str | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, str) else None
