"""Messages of one line each over file descriptors: split in linear time, written without blocking the event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import anyio.lowlevel

_CHUNK = 1 << 18


class LineTooLong(Exception):
    """A line is longer than allowed; the stream cannot be used any more."""


class LineSplitter:
    """Splits a stream into lines; the pieces of a line are joined once, at its end.

    Args:
        max_bytes: Of one line.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes and return the lines that end in them.

        Raises:
            LineTooLong: A line is too long.
        """
        first, *others = chunk.split(b"\n") if b"\n" in chunk else (chunk,)  # splitting copies
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
    """The next bytes; empty at the end."""
    while True:
        try:
            await anyio.wait_readable(descriptor)
        except PermissionError:  # a regular file, which is always readable
            await anyio.lowlevel.checkpoint()
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            continue


async def write_all(descriptor: int, data: bytes, *, chunk: int = _CHUNK) -> None:
    """Write everything.

    Args:
        descriptor: Where to.
        data: What.
        chunk: Bytes of one write; a blocking pipe takes 4096 without blocking once it is writable.

    Raises:
        OSError: It cannot be written.
    """
    for part in _parts(data, chunk):
        left = part
        while left:
            try:
                await anyio.wait_writable(descriptor)
            except PermissionError:  # a regular file
                await anyio.lowlevel.checkpoint()
            try:
                written = os.write(descriptor, left)
            except BlockingIOError:
                continue
            left = left[written:]


def _parts(data: bytes, size: int) -> Iterator[memoryview]:
    view = memoryview(data)
    for start in range(0, len(view), size):
        yield view[start : start + size]
