"""From the bytes a terminal sends to the keys that were pressed. Pure: bytes in, keys out; what is cut off waits for the rest.

Above: the line editor. Below: nothing.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

import attrs

__all__ = ["Key", "KeyParser"]

_CONTROLS = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x01": "home",
    "\x05": "end",
    "\x02": "left",
    "\x06": "right",
    "\x10": "up",
    "\x0e": "down",
    "\x04": "end-of-input",
    "\x0b": "erase-after",
    "\x0c": "clear-screen",
    "\x15": "erase-before",
    "\x17": "erase-word",
    "\x1a": "suspend",
}

_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "[H": "home",
    "[F": "end",
    "[1~": "home",
    "[7~": "home",
    "[4~": "end",
    "[8~": "end",
    "[3~": "delete",
    "[1;5C": "word-right",
    "[1;5D": "word-left",
    "[1;3C": "word-right",
    "[1;3D": "word-left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "OH": "home",
    "OF": "end",
    "b": "word-left",
    "f": "word-right",
    "\r": "newline",
    "\n": "newline",
    "\x7f": "erase-word",
}
"""What follows an escape character."""

# A whole sequence; or one that may still grow into one.
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.|[^\[O])", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?")
_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"


@attrs.frozen
class Key:
    """A key, or text that came in one piece.

    Attributes:
        name: ``text`` and ``paste`` for characters, else what the key does.
        text: The characters.
    """

    name: str
    text: str = ""


class KeyParser:
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._waiting = ""

    def feed(self, data: bytes) -> Iterator[Key]:
        """The keys that are complete now, taken one by one: what is not taken stays in `rest`."""
        self._waiting += self._decode(data)
        while self._waiting and (key := self._next()) is not None:
            if key.name:
                yield key

    def rest(self) -> bytes:
        """What was fed and not taken; it is forgotten here."""
        rest, self._waiting = self._waiting, ""
        return rest.encode(errors="replace")

    def _next(self) -> Key | None:
        """Take one key off the front; one without a name means nothing to us; None when more has to come first."""
        waiting = self._waiting
        if waiting.startswith(_PASTE_BEGINS):
            end = waiting.find(_PASTE_ENDS)
            if end < 0:
                return None
            self._waiting = waiting[end + len(_PASTE_ENDS) :]
            return Key("paste", waiting[len(_PASTE_BEGINS) : end].replace("\r\n", "\n").replace("\r", "\n"))
        if waiting[0] == "\x1b":
            return self._next_sequence(waiting)
        if not waiting[0].isprintable():
            self._waiting = waiting[1:]
            return Key(_CONTROLS.get(waiting[0], ""))
        length = next((at for at, character in enumerate(waiting) if not character.isprintable()), len(waiting))
        self._waiting = waiting[length:]
        return Key("text", waiting[:length])

    def _next_sequence(self, waiting: str) -> Key | None:
        whole = _SEQUENCE.match(waiting)
        if whole is not None:
            self._waiting = waiting[whole.end() :]
            return Key(_SEQUENCES.get(whole[1], ""))
        if _UNFINISHED.fullmatch(waiting):
            return None
        self._waiting = waiting[1:]  # no sequence of any kind: the escape alone means nothing
        return Key("")
