"""Lines and keys from a terminal, with waits that can be cancelled on both backends."""

from __future__ import annotations

import codecs
import os
import re
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from prompt_toolkit.key_binding.key_processor import KeyPress

_CHUNK = 4096
_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_KEYS = re.compile(r"\x1b\[[0-9;?]*[@-~]|\x1bO.|[\x00-\x1f\x7f]|[^\x00-\x1f\x7f]+")


# Questions, and chats at terminals that can't move their cursor, read lines in canonical mode, in
# which the system edits the line. While a turn of a chat runs, keys are read as they are pressed
# and not echoed, because the terminal would echo them in the middle of the live lines.
class Keyboard:
    """The terminal at standard input.

    Attributes:
        typed_ahead: Keys that the line prompt has read beyond the end of its line.
        draft: The beginning of an unfinished line, with which the line prompt starts.
    """

    def __init__(self) -> None:
        self.typed_ahead: list[KeyPress] = []
        self._descriptor = sys.stdin.fileno()
        self._read = b""
        self.draft: str = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_pasting = False
        self._modes: list[Any] | None = None

    async def read_line(self) -> str | None:
        """Return the next line without its end, or None at the end of input.

        A cancelled call loses nothing that was typed.
        """
        modes = self._modes
        self.restore()
        try:
            while b"\n" not in self._read:
                await anyio.wait_readable(self._descriptor)
                if not (data := self._receive_now()):
                    rest, self._read = self._read, b""
                    return rest.decode(errors="replace") if rest else None
                self._read += data
        finally:
            self._take_keys(modes)
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")

    def typed_lines(self) -> list[str | None]:
        """Return typed lines without waiting. None is the end of input, the rest is in `draft`."""
        lines: list[str | None] = []
        while select.select([self._descriptor], [], [], 0)[0]:
            if not (data := self._receive_now()):
                return [*lines, None]
            for key in _KEYS.findall(self._decoder.decode(data)):
                if key in (_PASTE_BEGINS, _PASTE_ENDS):
                    self._is_pasting = key == _PASTE_BEGINS
                # Pasted text is one message with any content.
                elif self._is_pasting and key in "\r\n\t":
                    self.draft += key.replace("\r", "\n")
                elif key == "\n" or (key == "\x04" and not self.draft):
                    lines.append(self.draft if key == "\n" else None)
                    self.draft = ""
                # Backspace, Ctrl-U for the line, Ctrl-W for the word.
                elif key in ("\x7f", "\b", "\x15", "\x17"):
                    end = {"\x15": 0, "\x17": self.draft.rstrip().rfind(" ") + 1}.get(key, -1)
                    self.draft = self.draft[:end]
                elif key.isprintable():
                    self.draft += key
        return lines

    @contextmanager
    def by_key(self) -> Iterator[None]:
        """Read keys as they are pressed, without echo. `read_line` still echoes lines."""
        with suppress(termios.error, OSError):
            self._take_keys(termios.tcgetattr(self._descriptor))
        try:
            yield
        finally:
            self.restore()

    def _take_keys(self, modes: list[Any] | None) -> None:
        if modes is not None:
            self._modes = modes
            flags = modes[3] & ~(termios.ICANON | termios.ECHO)
            by_key = [*modes[:3], flags, *modes[4:]]
            with suppress(termios.error, OSError):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, by_key)
                os.write(self._descriptor, b"\x1b[?2004h")  # marks pasted text

    def restore(self) -> None:
        """Restore the mode of the terminal."""
        modes, self._modes = self._modes, None
        if modes is not None:
            with suppress(termios.error, OSError):
                os.write(self._descriptor, b"\x1b[?2004l")
                termios.tcsetattr(self._descriptor, termios.TCSANOW, modes)

    def _receive_now(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            return b""

    def discard_input(self) -> None:
        """Discard typed input, because it can't answer a question that is asked later."""
        self.typed_ahead = []
        self._read = b""
        with suppress(termios.error, OSError):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
