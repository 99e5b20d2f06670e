"""Entering a line at the terminal with the keys people know: arrows, home and end, history, pasting of several lines.

While a line is being entered, and only then, the terminal hands over keys one by one and does not echo them. It is put back before
anything else happens, whichever way the entering ends. Ctrl-C stays a signal.

Above: the chat. Below: `_keyboard` for the bytes, `_keys` and `_line` for what they mean.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .keyboard import Keyboard
from .keys import KeyParser
from .line import Layout, Line, lay_out
from .output import Output

__all__ = ["LineEditor"]

_PASTES_WHOLE, _PASTES_AS_KEYS = "\x1b[?2004h", "\x1b[?2004l"
_HISTORY = 200


class LineEditor:
    """Reads lines.

    Args:
        keyboard: Where keys come from.
        terminal: Where the line is shown; it must be able to move its cursor.

    Attributes:
        history: What was entered, oldest first.
        dropped: What had been entered when the latest call was cancelled.
    """

    def __init__(self, keyboard: Keyboard, terminal: Output) -> None:
        self._keyboard = keyboard
        self._terminal = terminal
        self._drawn: Layout | None = None
        self.history: list[str] = []
        self.dropped = ""

    def remember(self, line: str) -> None:
        """Add a line to the history, unless it is the latest one again."""
        if line.strip() and self.history[-1:] != [line]:
            self.history = [*self.history[1 - _HISTORY :], line]

    async def read(self, prompt: str) -> str | None:
        """One line; None when the person wants to leave. A cancelled call drops what was entered."""
        line, keys = Line(self.history), KeyParser()
        self._drawn = None
        self.dropped = ""
        with self._key_by_key() as again:
            try:
                self._draw(prompt, line)
                while True:
                    for key in keys.feed(await self._keyboard.read_bytes()):
                        request = line.press(key)
                        if request == "submit":
                            self._keyboard.push_back(keys.rest())
                            return line.text
                        if request == "leave":
                            return None
                        if request == "suspend":
                            self._suspend(again)
                        elif request == "clear-screen":
                            self._terminal.write("\x1b[H\x1b[2J")
                            self._drawn = None
                    if self._keyboard.is_at_end:
                        return None
                    self._draw(prompt, line)
            except BaseException:
                self.dropped = line.text
                raise
            finally:
                line.cursor = len(line.text)
                self._draw(prompt, line)
                self._terminal.write("\n")

    # ── showing ──

    def _draw(self, prompt: str, line: Line) -> None:
        layout = lay_out(prompt, line.text, line.cursor, self._terminal.width())
        before = self._drawn
        up = f"\x1b[{before.cursor_row}A" if before is not None and before.cursor_row else ""
        shown = "\n".join(layout.rows)
        if shown.startswith(prompt):
            shown = self._terminal.styled(prompt, "bold") + shown[len(prompt) :]
        back = len(layout.rows) - 1 - layout.cursor_row
        place = (
            (f"\x1b[{back}A" if back else "") + "\r" + (f"\x1b[{layout.cursor_column}C" if layout.cursor_column else "")
        )
        self._terminal.write(f"{up}\r\x1b[J{shown}{place}")
        self._drawn = layout

    # ── the terminal ──

    @contextmanager
    def _key_by_key(self) -> Iterator[Callable[[bool], None]]:
        """Take the terminal over; what is yielded switches it back and forth."""
        descriptor = self._keyboard.descriptor
        try:
            ordinary = termios.tcgetattr(descriptor)
        except termios.error:  # it has gone; reading will say so
            yield lambda _on: None
            return
        ours = _by_keys(ordinary)

        def switch(on: bool) -> None:
            with suppress(termios.error, OSError):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, ours if on else ordinary)
            self._terminal.write(_PASTES_WHOLE if on else _PASTES_AS_KEYS)

        def put_back() -> None:
            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, ordinary)
                sys.stderr.write(_PASTES_AS_KEYS)

        atexit.register(put_back)  # for an exit that unwinds nothing
        try:
            switch(True)
            yield switch
        finally:
            switch(False)
            self._terminal.at_line_start = True
            atexit.unregister(put_back)

    def _suspend(self, switch: Callable[[bool], None]) -> None:
        """Ctrl-Z: leave the terminal to the shell until we are continued."""
        self._terminal.write("\n")
        switch(False)
        os.kill(0, signal.SIGTSTP)
        switch(True)
        self._drawn = None


def _by_keys(ordinary: list[Any]) -> list[Any]:
    """The terminal's modes with keys one by one, not echoed; Ctrl-C is still a signal, Ctrl-Z and Ctrl-backslash are keys."""
    modes = list(ordinary)
    modes[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    changed = list(modes[6])
    disabled = bytes([os.fpathconf(0, "PC_VDISABLE") & 0xFF]) if "PC_VDISABLE" in os.pathconf_names else b"\0"
    changed[termios.VSUSP] = changed[termios.VQUIT] = disabled
    changed[termios.VMIN], changed[termios.VTIME] = 1, 0
    modes[6] = changed
    return modes
