"""Reading from the terminal without blocking anything and without losing a key: a wait that can be cancelled, on both backends.

No mode of the terminal is changed here. In its ordinary mode the system itself edits the line and hands it over whole.

Above: the line editor and the approval questions. Below: AnyIO.
"""

from __future__ import annotations

import os
import sys
import termios
from contextlib import suppress

import anyio

__all__ = ["Keyboard"]

_CHUNK = 4096


class Keyboard:
    """The terminal at standard input.

    Args:
        descriptor: Another terminal's file descriptor; it stays the caller's.

    Attributes:
        descriptor: Where keys are read from.
        is_at_end: Whether the last read met the end of input.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self.is_at_end = False
        self._read = b""

    @staticmethod
    def is_there() -> bool:
        """Whether a person can type."""
        try:
            return sys.stdin.isatty()
        except (AttributeError, ValueError):
            return False

    async def read_line(self) -> str | None:
        """The next line without its end; None at the end of input. A cancelled call loses nothing that was typed."""
        while b"\n" not in self._read:
            data = await self._receive()
            if not data:
                rest, self._read = self._read, b""
                return rest.decode(errors="replace") if rest else None
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")

    async def read_bytes(self) -> bytes:
        """Whatever was typed since; nothing at the end of input."""
        typed, self._read = self._read, b""
        return typed or await self._receive()

    def push_back(self, data: bytes) -> None:
        """Put back what was read and is not needed yet."""
        self._read = data + self._read

    async def _receive(self) -> bytes:
        await anyio.wait_readable(self.descriptor)
        try:
            data = os.read(self.descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            data = b""
        self.is_at_end = not data
        return data

    def forget_typed(self) -> None:
        """Drop what was typed ahead: it cannot have been meant as the answer to a question not asked yet."""
        self._read = b""
        with suppress(termios.error, OSError):
            termios.tcflush(self.descriptor, termios.TCIFLUSH)
