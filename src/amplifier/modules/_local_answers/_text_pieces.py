"""Splits a text into the pieces that a stream sends."""

from __future__ import annotations

import re

_MOST_PIECES = 200
_WORD = re.compile(r"\S+\s*|\s+")


def pieces_of(text: str) -> list[str]:
    """Split a text into pieces of one word or, for a long text, of several; joined they are the text again."""
    words = _WORD.findall(text)
    size = -(-len(words) // _MOST_PIECES) or 1
    return ["".join(words[at : at + size]) for at in range(0, len(words), size)]
