"""Reads lines from a terminal in canonical mode, in which the system edits the line; a wait can be cancelled on both backends.

Used for approval questions, for what is typed while a turn runs, and for chats at terminals that cannot move their cursor. The
terminal's mode is not changed.
"""

from __future__ import annotations

import os
import select
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from prompt_toolkit.key_binding.key_processor import KeyPress

__all__ = ["Keyboard"]

_CHUNK = 4096


class Keyboard:
    """The terminal at standard input.

    Attributes:
        typed_ahead: Keys that the line prompt has read beyond the end of its line, for its next line.
    """

    def __init__(self) -> None:
        self.typed_ahead: list[KeyPress] = []
        self._descriptor = sys.stdin.fileno()
        self._read = b""

    @staticmethod
    def is_available() -> bool:
        """Whether standard input is a terminal."""
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

    def typed_lines(self) -> list[str | None]:
        """The lines that were typed and not read, without waiting; None at the end for the end of input."""
        ended = False
        while not ended and select.select([self._descriptor], [], [], 0)[0]:
            data = self._receive_now()
            self._read += data
            ended = not data
        *lines, self._read = self._read.split(b"\n")
        return [*(line.decode(errors="replace").rstrip("\r") for line in lines), *((None,) if ended else ())]

    async def _receive(self) -> bytes:
        await anyio.wait_readable(self._descriptor)
        return self._receive_now()

    def _receive_now(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            return b""

    def discard_input(self) -> None:
        """Discard what was typed ahead: it cannot be the answer to a question that was not asked yet."""
        self.typed_ahead = []
        self._read = b""
        with suppress(termios.error, OSError):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
