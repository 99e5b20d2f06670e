"""Hostile values: what JSON allows and few programs expect.

None of them does harm in a module that uses it: no absolute path, no parent directory, no home, no address beyond this
machine, no program, and no number so large that counting to it would fill the memory.
"""

from __future__ import annotations

import json
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
"""Texts that break naive code: empty, control characters, patterns, templates, out-of-range numbers, very long."""

DEEP: Any = json.loads('{"deep": [' * 40 + '"leaf"' + "]}" * 40)

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
"""One of every type of JSON value, and the edge cases of each."""

_HARMLESS = re.compile(r"[A-Za-z][\w.:-]{0,30}")


def is_harmless(text: str) -> bool:
    """Whether a text found in a module's source may be passed to it: a word, not a path or a command line."""
    return _HARMLESS.fullmatch(text) is not None and ".." not in text
