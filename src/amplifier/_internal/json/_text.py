"""Canonical JSON text, and text that is safe to store or to show."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from amplifier.errors import ModelError

from ._walk import Frame, rebuild
from .values import convert_to_json

# Below the nesting limits of the C encoders, so that our error is raised.
_MAX_TEXT_DEPTH = 250
# Deeper parts of logs and events are replaced by a marker.
MAX_SHOWN_DEPTH = 100

# ── canonical text ───────────────────────────────────────────────────────────────────────────────


def canonical_dumps(value: Any) -> str:
    """Write a value as canonical JSON text: sorted keys, no spaces, no escapes to ASCII.

    Tuples are written as arrays, and enum members as their values. Nothing else is converted. Keys
    have to be strings, because ``{1: …}`` and ``{"1": …}`` would have the same text.

    Raises:
        ModelError: JSON cannot represent some part. The error lists every such part.
    """
    plain = convert_to_json(value, subject=_NOT_JSON, max_depth=_MAX_TEXT_DEPTH)
    try:
        return json.dumps(
            plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    # An integer may exceed the limit of digits, and the caller's stack may be almost full.
    except (ValueError, RecursionError) as error:
        raise ModelError([("", str(error))], subject=_NOT_JSON) from error


_NOT_JSON = "value cannot be written as JSON"


# ── text ─────────────────────────────────────────────────────────────────────────────────────────

# The patterns are compiled on first use, because they are slow to compile and most text needs none.
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]+"
# Characters that a terminal interprets or hides: controls, soft hyphen and fillers, bidirectional
# and zero-width characters, line and paragraph separators, and the tag and variation characters
# that can smuggle text. U+FE0F is not among them, because it only marks emoji.
_UNSEEN = (
    r"\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e0fff"
)
# Characters in a visible category that show nothing, or only modify the one before. They matter for
# `visible_text(strict=True)`.
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\ufffc"
    "\U00013441\U00013442\U00016fe4\U0001d159"
) | {chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))}
# More combining marks on a letter would cover the text around it.
_MAX_MARKS = 2
_INVISIBLE = rf"[\x00-\x08\x0b-\x1f{_UNSEEN}]+"
_INVISIBLE_OR_BREAK = rf"[\x00-\x1f{_UNSEEN}]+"


def sanitize_text(text: str) -> str:
    """Remove control characters, except tab, newline and carriage return, and lone surrogates."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return re.sub(_CONTROLS, "", text)


def visible_text(text: str, *, multiline: bool = True, strict: bool = False) -> str:
    r"""Escape characters of untrusted text that a terminal would interpret or hide.

    They are written as ``\x1b``, ``\u202e`` and so on.

    Args:
        text: Text of unknown origin.
        multiline: Whether to keep newlines and tabs. If not, the result is one line.
        strict: Whether to escape all invisible characters, for text that a person decides on. It
            includes characters with a place in ordinary text: U+FE0F after an emoji, blank letters,
            unusual spaces and unassigned characters.
    """
    if text.isprintable() and text.isascii():
        return text
    if strict:
        return _strictly_visible(text, "\n\t" if multiline else "")
    return re.sub(_INVISIBLE if multiline else _INVISIBLE_OR_BREAK, _escape, text)


def _strictly_visible(text: str, kept: str) -> str:
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        is_seen = character.isprintable() and character not in _BLANK and marks <= _MAX_MARKS
        shown.append(character if is_seen or character in kept else _escape_character(character))
    return "".join(shown)


def _escape(match: re.Match[str]) -> str:
    text = match[0]
    if len(text) == 1:
        return _escape_character(text)
    return text.encode("unicode_escape").decode("ascii")


@lru_cache(maxsize=256)
def _escape_character(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def truncate_values(value: Any, max_length: int = 180) -> Any:
    """Copy a value with long strings in its dicts and lists truncated to `max_length` characters.

    A note after every truncated string has the number of removed characters.
    """

    def cut(leaf: Any, _frames: Sequence[Frame]) -> Any:
        if isinstance(leaf, str) and len(leaf) > max_length:
            return f"{leaf[:max_length]}... (truncated {len(leaf) - max_length} chars)"
        return leaf

    return rebuild(
        value, cut, subject="", max_depth=MAX_SHOWN_DEPTH, containers=(dict, list), mark=True
    )


def text_size(value: Any, enough: int) -> int:
    """Estimate the size of a value as JSON text. Counting stops above `enough`."""
    size = 0
    waiting: list[Any] = [value]
    while waiting and size <= enough:
        value = waiting.pop()
        if isinstance(value, str | bytes | bytearray):
            size += len(value)
        elif isinstance(value, dict):
            size += sum(len(key) if isinstance(key, str) else 8 for key in value) + 8 * len(value)
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            size += 4 * len(value)
            waiting += value
    return size
