"""A line being edited, and how it is laid out in a window of some width. Pure.

Above: the line editor. Below: `_keys`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs
from rich.cells import get_character_cell_size

from amplifier._json import sanitize_text, visible_text

from .keys import Key

__all__ = ["Layout", "Line", "lay_out"]

Request: TypeAlias = Literal["submit", "leave", "suspend", "clear-screen"]
"""What a key asks of whoever edits; most ask for nothing but to be shown."""


class Line:
    """Text, a cursor in it, and the lines that were entered before.

    Args:
        history: Earlier lines, oldest first; not changed.

    Attributes:
        text: May hold newlines, from pasting or Alt-Enter.
        cursor: An index into it.
    """

    def __init__(self, history: Sequence[str] = ()) -> None:
        self._versions = [*history, ""]
        self._version = len(history)
        self.text = ""
        self.cursor = 0

    def press(self, key: Key) -> Request | None:
        """Act upon a key."""
        if key.name == "enter":
            return "submit"
        if key.name == "end-of-input":
            if not self.text:
                return "leave"
            self._erase(self.cursor, self._right(self.cursor))
            return None
        if key.name == "suspend":
            return "suspend"
        if key.name == "clear-screen":
            return "clear-screen"
        if key.name in ("text", "paste", "newline"):
            self._insert("\n" if key.name == "newline" else key.text)
        elif key.name in ("up", "down"):
            self._recall(-1 if key.name == "up" else 1)
        else:
            self._move_or_erase(key.name)
        return None

    def _insert(self, text: str) -> None:
        text = sanitize_text(text.replace("\t", "    ").replace("\r", ""))
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _move_or_erase(self, name: str) -> None:
        here = self.cursor
        targets = {
            "left": self._left,
            "right": self._right,
            "word-left": self._word_left,
            "word-right": self._word_right,
        }
        if name in targets:
            self.cursor = targets[name](here)
        elif name == "home":
            self.cursor = 0
        elif name == "end":
            self.cursor = len(self.text)
        elif name == "backspace":
            self._erase(self._left(here), here)
        elif name == "delete":
            self._erase(here, self._right(here))
        elif name == "erase-word":
            self._erase(self._word_left(here), here)
        elif name == "erase-before":
            self._erase(0, here)
        elif name == "erase-after":
            self._erase(here, len(self.text))

    def _erase(self, start: int, end: int) -> None:
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    def _left(self, index: int) -> int:
        """One character to the left, with the marks that belong to it."""
        index = max(index - 1, 0)
        while index and _width(self.text[index]) == 0:
            index -= 1
        return index

    def _right(self, index: int) -> int:
        index = min(index + 1, len(self.text))
        while index < len(self.text) and _width(self.text[index]) == 0:
            index += 1
        return index

    def _word_left(self, index: int) -> int:
        before = self.text[:index].rstrip()
        return len(before) - len(before.split()[-1]) if before else 0

    def _word_right(self, index: int) -> int:
        behind = self.text[index:].lstrip()
        return len(self.text) - len(behind) + len(behind.split()[0]) if behind else len(self.text)

    def _recall(self, step: int) -> None:
        wanted = self._version + step
        if not 0 <= wanted < len(self._versions):
            return
        self._versions[self._version] = self.text
        self._version = wanted
        self.text = self._versions[wanted]
        self.cursor = len(self.text)


@attrs.frozen
class Layout:
    """Rows on the screen, and where the cursor is among them."""

    rows: list[str]
    cursor_row: int
    cursor_column: int


def lay_out(prompt: str, text: str, cursor: int, width: int) -> Layout:
    """Break a prompt and a text into rows of at most ``width`` cells; newlines are shown as marks."""
    rows, column = [""], 0
    place: tuple[int, int] | None = None
    for index, character in enumerate(f"{prompt}{text}"):
        shown = "↵" if character == "\n" else visible_text(character, multiline=False)
        cells = sum(_width(each) for each in shown)
        if column + cells > width:
            rows.append("")
            column = 0
        if index == len(prompt) + cursor:
            place = len(rows) - 1, column
        rows[-1] += shown
        column += cells
    if place is None:
        if column >= width:
            rows.append("")
            column = 0
        place = len(rows) - 1, column
    return Layout(rows, *place)


def _width(character: str) -> int:
    return 1 if character == "\n" else get_character_cell_size(character)
