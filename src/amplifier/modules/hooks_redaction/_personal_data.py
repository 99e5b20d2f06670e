"""E-mail addresses and telephone numbers in text, in linear time.

Every repetition is bounded, and the search for an address starts at its ``@``: the obvious pattern tries every start of a
long word and is quadratic.
"""

from __future__ import annotations

import re

PERSONAL = "[REDACTED:PII]"

_LOCAL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.!#$%&'*+/=?^_`{|}~-")
_DOMAIN = re.compile(r"@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}(?![A-Za-z0-9-])")
_DOMAIN_ANY_LETTER = re.compile(r"@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}\.[^\W\d_]{2,24}(?![\w-])")
# With a country code, or in the North American grouping; digits alone may be any number.
_TELEPHONE = re.compile(
    r"\+(?<![\w+]\+)\d(?:[ ().-]{0,2}\d){7,14}(?!\d)"
    r"|(?<![\w.-])(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}(?![\w-]|\.\d)"
)


def redact_personal(text: str) -> str:
    """Replace addresses and telephone numbers by ``[REDACTED:PII]``; other text is returned unchanged."""
    if "@" in text:
        text = _redact_addresses(text)
    if len(text) >= 8 and ("+" in text or "-" in text or "." in text or " " in text):
        text = _TELEPHONE.sub(PERSONAL, text)
    return text


def _redact_addresses(text: str) -> str:
    pattern = _DOMAIN if text.isascii() else _DOMAIN_ANY_LETTER
    pieces: list[str] = []
    done = 0
    for found in pattern.finditer(text):
        begin = found.start()
        # Not before the end of the previous match, so that no character is examined twice.
        while begin > done and (text[begin - 1] in _LOCAL or (text[begin - 1] > "\x7f" and text[begin - 1].isalnum())):
            begin -= 1
        if begin == found.start():
            continue
        pieces += (text[done:begin], PERSONAL)
        done = found.end()
    return "".join(pieces) + text[done:] if pieces else text
