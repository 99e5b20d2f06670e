"""The standard streams, which may be terminals, closed, or in an encoding other than UTF-8."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO

from amplifier._internal.json import visible_text
from amplifier.cli._exit_codes import OutputLostError

_PLAIN_TERMINALS = frozenset({"", "dumb", "unknown"})
_STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


# Text from the model, a tool or a file passes through visible_text() before it gets here. Escape
# sequences in the written text are the command line's own.
class Output:
    """One stream.

    Args:
        stream: The stream to write to.
        is_required: True if the command is useless without this stream.
        plain: True to treat a terminal as unable to move its cursor or show colours, for screen
            readers.

    Attributes:
        is_terminal: True if it is a terminal.
        can_move_cursor: True if the terminal can move its cursor.
        has_colour: True if the text may be coloured.
        is_lost: True once the reader has closed the stream, so that nothing more is written.
        at_line_start: True if the last written text ended a line.
    """

    def __init__(self, stream: TextIO, *, is_required: bool, plain: bool = False) -> None:
        self._stream = stream
        self._is_vital = is_required
        self.is_terminal: bool = is_terminal(stream)
        self.can_move_cursor: bool = (
            self.is_terminal and not plain and os.environ.get("TERM", "") not in _PLAIN_TERMINALS
        )
        self.has_colour: bool = self.can_move_cursor and not os.environ.get("NO_COLOR")
        self.is_lost: bool = False
        self.at_line_start: bool = True
        self._encoding: str = getattr(stream, "encoding", None) or "utf-8"
        if isinstance(stream, TextIOWrapper):
            with suppress(ValueError, OSError):
                stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> None:
        """Write and flush.

        Raises:
            BrokenPipeError: The reader of a required stream has closed it.
            OutputLostError: A required stream can't be written for another reason, such as a full
                disk.
        """
        if self.is_lost or not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        # The reader has closed the stream, or the terminal or file was closed.
        except (OSError, ValueError) as error:
            self.is_lost = True
            if not self._is_vital or self._has_hung_up(error):
                return
            if isinstance(error, BrokenPipeError):
                raise
            reason = error.strerror if isinstance(error, OSError) else None
            raise OutputLostError(reason or str(error)) from error
        self.at_line_start = text.endswith("\n")

    def _has_hung_up(self, error: Exception) -> bool:
        """Return whether a terminal was closed.

        In that case its signal determines how the command ends.
        """
        return self.is_terminal and isinstance(error, OSError) and error.errno == errno.EIO

    def line(self, text: str = "") -> None:
        """Write a separate line."""
        self.write(f"{'' if self.at_line_start else chr(10)}{text}\n")

    def styled(self, text: str, style: str | None) -> str:
        """Return the text in a style, if the stream supports colour."""
        if not self.has_colour or style is None:
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    def glyph(self, fancy: str, plain: str) -> str:
        """Return the first text if the stream's encoding supports it, or the second one."""
        try:
            fancy.encode(self._encoding)
        except (UnicodeEncodeError, LookupError):
            return plain
        return fancy

    def width(self) -> int:
        """Return the width in columns, or 80 if unknown."""
        return self.size()[0]

    def size(self) -> tuple[int, int]:
        """Return the size in columns and lines, or 80 and 24 if unknown."""
        with suppress(OSError, ValueError, AttributeError):
            size = os.get_terminal_size(self._stream.fileno())
            return size.columns or 80, size.lines or 24
        return 80, 24


class StandardStreams:
    """Standard output for answers, standard error for everything else."""

    def __init__(self, *, plain: bool = False) -> None:
        self.out: Output = Output(sys.stdout, is_required=True, plain=plain)
        self.err: Output = Output(sys.stderr, is_required=False, plain=plain)

    @property
    def share_a_terminal(self) -> bool:
        """True if both streams are shown on a terminal."""
        return self.out.is_terminal and self.err.is_terminal

    @staticmethod
    def discard_unwritable() -> None:
        """Discard buffered text that can no longer be written.

        Otherwise Python would try to write it at exit, and exit with 120.
        """
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                with suppress(OSError, ValueError, AttributeError):
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, stream.fileno())
                    os.close(nowhere)


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, cut: Collection[str] = ()
) -> None:
    """Print rows of untrusted text: columns on a terminal, tab-separated values in a pipe.

    Cells are wrapped. If some columns may be cut, each row is one line instead.
    """
    shown = [[visible_text(cell, multiline=False) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in shown:
            print("\t".join(row))
        return
    # Import rich only for a terminal, because this takes a fifth of a second.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(
            heading, no_wrap=heading not in cut if cut else number == 0, overflow="ellipsis"
        )
    for row in shown:
        # Pass a Text, because brackets in untrusted text are not markup.
        table.add_row(*(Text(cell, no_wrap=bool(cut), overflow="ellipsis") for cell in row))
    Console().print(table)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal. A closed stream isn't."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
