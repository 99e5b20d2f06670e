"""Values that nobody expects and JSON allows: what a model writes on a bad day.

None of them can do harm where it lands: no absolute path, no way up, no home, no address beyond this machine, no program,
and no number large enough to fill the memory of whoever counts to it. Above stand the inputs of tools and the payloads of
hooks; below stands nothing of ours.
"""

from __future__ import annotations

import re
from typing import Any

LONG = "long " * 1_200

ODD_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "nul\x00byte",
    "two\nlines\r\n\ttabbed",
    "ünïcödé ✓ 漢字 👩\u200d👩\u200d👧 \u202ertl",
    "[",
    "(*",
    "{0} {} %s %d %",
    "\\",
    "\"quoted\" 'twice'",
    "null",
    "true",
    "{}",
    "1e400",
    LONG,
)
"""Texts that trip naive code: empty, controls, patterns, templates, numbers beyond measure, much of it."""

DEEP: Any = "leaf"
for _ in range(40):
    DEEP = {"deep": [DEEP]}

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1000,
    3.5,
    -0.0,
    1e300,
    [],
    [None],
    ["a", 1, None, {}],
    [[]],
    {},
    {"": None},
    {"unknown": {"nested": [1, 2, {"x": "y"}]}},
    DEEP,
    *ODD_TEXTS,
)
"""One of every kind of JSON value, and the edges of each."""

_HARMLESS = re.compile(r"[A-Za-z][\w.:-]{0,30}")


def is_harmless(text: str) -> bool:
    """Whether a text found in a module's source may be handed to it: a word, not a path or a command line."""
    return _HARMLESS.fullmatch(text) is not None and ".." not in text
