"""Rotation of a log that several sessions and processes may write: ``events.jsonl`` becomes ``events.jsonl.1``, and so on.

A writer holds ``events.jsonl.lock`` (flock) shared while it writes a line, and exclusively while it renames the files. No call waits for
the lock, because the event loop would wait with it: if another writer has it, the log is rotated with a later line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_ATTEMPTS = 100
"""How often a writer tries to get the shared lock while another one renames files, which takes microseconds."""


class Rotation:
    """The old files of a log.

    Args:
        path: The newest file.
        max_bytes: The size that no file exceeds, unless a single line does.
        keep: How many old files there are at most.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.max_bytes = max_bytes
        self._path = path
        self._keep = keep
        self._lock: int | None = None

    def open(self) -> None:
        """Open the lock.

        Raises:
            OSError: The system refuses, or has no file locks.
        """
        if fcntl is None:
            raise OSError("max_bytes needs file locks (flock), which this system does not have")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._lock = os.open(self._path.with_name(f"{self._path.name}.lock"), flags, 0o600)

    def close(self) -> None:
        """Close the lock; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Be the only writer; yields False if another one writes or rotates now."""
        with self._held(fcntl.LOCK_EX, attempts=1) as is_held:
            yield is_held

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep other writers from rotating. If one does not come to an end of it, nothing is held.

        The line is then written all the same: to the file that was the newest a moment ago.
        """
        with self._held(fcntl.LOCK_SH, attempts=_ATTEMPTS):
            yield

    @contextmanager
    def _held(self, how: int, attempts: int) -> Iterator[bool]:
        lock = self._lock
        is_held = False
        for _ in range(attempts if lock is not None else 0):
            with suppress(BlockingIOError):
                fcntl.flock(lock, how | fcntl.LOCK_NB)  # type: ignore[arg-type]  # not None
                is_held = True
                break
        try:
            yield is_held
        finally:
            if is_held and lock is not None:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def rotate(self) -> None:
        """Give the newest file the number 1, and the others one more; those beyond the limit are removed.

        Raises:
            OSError: The system refuses; every file still has a name, and no line is lost.
        """
        numbers = self._numbers()
        free = next(number for number in range(1, len(numbers) + 2) if number not in numbers)
        for number in range(min(free, self._keep) - 1, 0, -1):
            self._part(number).replace(self._part(number + 1))
        self._path.replace(self._part(1))
        for number in numbers:
            if number > self._keep:
                self._part(number).unlink(missing_ok=True)

    def _numbers(self) -> set[int]:
        pattern = re.compile(rf"{re.escape(self._path.name)}\.([1-9][0-9]{{0,5}})")
        found = (pattern.fullmatch(each.name) for each in self._path.parent.iterdir())
        return {int(match[1]) for match in found if match is not None}

    def _part(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
