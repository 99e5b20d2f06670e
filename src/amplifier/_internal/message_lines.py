"""Messages of one line each over file descriptors, without blocking the event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import anyio.lowlevel

_CHUNK = 1 << 18


class LineTooLong(Exception):
    """A line is too long. The stream is no longer usable."""


class LineSplitter:
    """Splits a stream into lines in linear time.

    Args:
        max_bytes: Maximum number of bytes of a line.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add the next bytes, and return the lines that end in them.

        Raises:
            LineTooLong: A line is too long.
        """
        # Splitting would copy a chunk without line breaks.
        first, *others = chunk.split(b"\n") if b"\n" in chunk else (chunk,)
        self._pieces.append(first)
        self._size += len(first)
        if self._size > self._max_bytes:
            raise LineTooLong(f"a line has more than {self._max_bytes} bytes")
        if not others:
            return []
        *whole, rest = others
        lines = [b"".join(self._pieces), *whole]
        self._pieces, self._size = [rest], len(rest)
        return lines


async def read_chunk(descriptor: int) -> bytes:
    """Return the next bytes, empty at the end."""
    while True:
        try:
            await anyio.wait_readable(descriptor)
        # A regular file cannot be waited for, but is always readable.
        except PermissionError:
            await anyio.lowlevel.checkpoint()
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            continue


async def write_all(descriptor: int, data: bytes, *, chunk: int = _CHUNK) -> None:
    """Write all data.

    Args:
        descriptor: The file descriptor.
        data: The data.
        chunk: Maximum size of one write. A writable pipe in blocking mode accepts 4096 bytes
            without blocking.

    Raises:
        OSError: The data cannot be written.
    """
    for part in _parts(data, chunk):
        rest = part
        while rest:
            try:
                await anyio.wait_writable(descriptor)
            except PermissionError:  # a regular file
                await anyio.lowlevel.checkpoint()
            try:
                written = os.write(descriptor, rest)
            except BlockingIOError:
                continue
            rest = rest[written:]


def _parts(data: bytes, size: int) -> Iterator[memoryview]:
    view = memoryview(data)
    for start in range(0, len(view), size):
        yield view[start : start + size]
