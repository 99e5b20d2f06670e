"""JSON values as text: the canonical form, and text made safe to store or to show.

Sits on `_walk`; the redaction of secrets has its own file.
"""

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

_MAX_TEXT_DEPTH = (
    250  # below the nesting limits of the C encoders, so that it is our limit that speaks
)
MAX_SHOWN_DEPTH = 100  # for logs and events: deeper is noise, and is replaced by a marker

# ── canonical text ───────────────────────────────────────────────────────────────────────────────


def canonical_dumps(value: Any) -> str:
    """Write a value as JSON text that depends on the value only: keys sorted, no spaces, not escaped to ASCII.

    Tuples are written as arrays, members of an enum as their values. Nothing else is converted: a key that is no string is an error,
    because ``{1: …}`` and ``{"1": …}`` would have the same text.

    Raises:
        ModelError: Something in the value has no JSON form; every such place is listed.
    """
    plain = convert_to_json(value, subject=_NOT_JSON, max_depth=_MAX_TEXT_DEPTH)
    try:
        return json.dumps(
            plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except (
        ValueError,
        RecursionError,
    ) as error:  # an int beyond the digits limit; a caller deep in its own stack
        raise ModelError([("", str(error))], subject=_NOT_JSON) from error


_NOT_JSON = "value cannot be written as JSON"


# ── text ─────────────────────────────────────────────────────────────────────────────────────────

# These are compiled when they are first used: most text is seen to be clean without them, and they take long to compile.
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]+"
# What a terminal obeys or hides: controls, soft hyphen and fillers, bidirectional and zero-width characters, line and
# paragraph separators, and the tag and variation characters that smuggle text. U+FE0F stays: it only makes emoji.
_UNSEEN = (
    r"\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
# Characters with a category of visible ones that show nothing, or only change the one before: for `visible_text(strict=True)`.
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\ufffc"
    "\U00013441\U00013442\U00016fe4\U0001d159"
) | {chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))}
_MOST_MARKS = 2  # on one letter; more of them paint over what is around it
_INVISIBLE = rf"[\x00-\x08\x0b-\x1f{_UNSEEN}]+"
_INVISIBLE_OR_BREAK = rf"[\x00-\x1f{_UNSEEN}]+"


def sanitize_text(text: str) -> str:
    """Drop control characters (not tab, newline, carriage return) and lone surrogates; clean text is returned as is."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return re.sub(_CONTROLS, "", text)


def visible_text(text: str, *, multiline: bool = True, strict: bool = False) -> str:
    r"""Make untrusted text safe to show: what a terminal would obey or hide is written as ``\x1b``, ``\u202e``, ….

    Args:
        text: Text of unknown origin.
        multiline: Keep newlines and tabs; without it they are written out too, and the result is one line.
        strict: For what a person decides on: write out everything that shows nothing, also what has a place in ordinary text, such
            as U+FE0F after an emoji, blank letters and patterns, spaces other than the usual one, and characters without a meaning.
    """
    if text.isprintable() and text.isascii():
        return text
    if strict:
        return _strictly_visible(text, "\n\t" if multiline else "")
    return re.sub(_INVISIBLE if multiline else _INVISIBLE_OR_BREAK, _spell_out, text)


def _strictly_visible(text: str, kept: str) -> str:
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        is_seen = character.isprintable() and character not in _BLANK and marks <= _MOST_MARKS
        shown.append(character if is_seen or character in kept else _spell_character(character))
    return "".join(shown)


def _spell_out(found: re.Match[str]) -> str:
    text = found[0]
    return (
        _spell_character(text) if len(text) == 1 else text.encode("unicode_escape").decode("ascii")
    )


@lru_cache(maxsize=256)
def _spell_character(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def truncate_values(value: Any, max_length: int = 180) -> Any:
    """Copy a value with every long string in its dicts and lists cut to `max_length` characters, with a note of how many were cut."""

    def cut(leaf: Any, _frames: Sequence[Frame]) -> Any:
        if isinstance(leaf, str) and len(leaf) > max_length:
            return f"{leaf[:max_length]}... (truncated {len(leaf) - max_length} chars)"
        return leaf

    return rebuild(
        value, cut, subject="", max_depth=MAX_SHOWN_DEPTH, containers=(dict, list), mark=True
    )


def text_size(value: Any, enough: int) -> int:
    """Estimate the size of a value as JSON text; counting stops above `enough`."""
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
