"""The grammar of ids, and how messages show what was found."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Final

from ..errors import PlanError

MODULE_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# No leading dot: such a name is hidden on most systems, and "." and ".." are directories.
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")
MODULE_ID_RULE = (
    "expected a module id: a lower-case letter, then lower-case letters, digits, '-' or '_', at most 64 in all"
)


def is_module_id(text: object) -> bool:
    """Whether this can be the id of a module: it becomes part of paths and package names, so the grammar is narrow."""
    return type(text) is str and has_id_form(text)


@lru_cache(maxsize=1024)  # every session reads the same few ids again; the pattern costs five times the look-up
def has_id_form(text: str) -> bool:
    """`is_module_id` for what is known to be exactly a str."""
    return MODULE_ID.fullmatch(text) is not None


def validate_module_id(text: object) -> str:
    """Return the id, or raise a `PlanError` with the rule."""
    if type(text) is str and has_id_form(text):
        return text
    raise PlanError([("", f"{MODULE_ID_RULE}; got {show(text)}")], subject="invalid module id")


def validate_session_id(text: object) -> str:
    """Return the session id, or raise a `PlanError`: it names files and appears in logs, so it can be no path."""
    if type(text) is str and _SESSION_ID.fullmatch(text):
        return text
    rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
    raise PlanError([("", f"{rule}; got {show(text)}")], subject="invalid session id")


def show(value: object) -> str:
    """A short ``repr`` for messages; objects of foreign classes are named by their class only."""
    kind = type(value)
    if value is None or kind in (bool, float) or (kind is int and isinstance(value, int) and abs(value) < 10**18):
        return repr(value)
    if kind is str:
        text = ascii(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    return f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__}"


def new_session_id() -> str:
    """A random UUID as text; the standard library's own costs three times as much, and its import more than that."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40  # version 4
    raw[8] = raw[8] & 0x3F | 0x80  # the usual variant
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
