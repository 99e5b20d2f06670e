r"""Texts that a regular expression matches, generated from the parsed expression.

A gate that looks for ``rm\s+-rf`` never objects to text drawn at random; examining it takes the text that it looks for.
Generated texts that do not match are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, product
from re import _constants, _parser  # type: ignore[attr-defined]  # there is no public way to a parsed expression
from typing import Any

_MOST = 4
"""Texts for each expression."""
_MOST_ALTERNATIVES = 6
_LONGEST = 120
_CATEGORIES = {"CATEGORY_DIGIT": "7", "CATEGORY_WORD": "a", "CATEGORY_SPACE": " ", "CATEGORY_NOT_DIGIT": "a"}
_ANY = "a7 -./:@A_x"
"""Characters that are tried where nearly any will do."""
_META = re.compile(r"[\\\[\](){}|*+?^$.]")


def texts_matching(text: str) -> list[str]:
    """A few texts that a text matches when it is read as a pattern; the text itself if it is a plain one."""
    if not _META.search(text):
        return [text]
    try:
        expression = re.compile(text, re.IGNORECASE)
        made = list(islice(_of_sequence(_parser.parse(text), {}), _MOST_ALTERNATIVES))
    except (re.error, RecursionError, OverflowError, ValueError):
        return [text]
    matching = [each for each in dict.fromkeys(made) if 0 < len(each) <= _LONGEST and expression.search(each)]
    # A text with a dot in it may be meant literally: a name of a file, the end of a sentence.
    return list(dict.fromkeys([*matching[:_MOST], *([text] if expression.search(text) else [])]))


def _of_sequence(parts: Iterable[Any], groups: dict[int, str]) -> Iterator[str]:
    choices = [list(islice(_of_part(op, value, groups), _MOST_ALTERNATIVES)) for op, value in parts]
    longest = max((len(choice) for choice in choices), default=1)
    # Each alternative of each part once, not every combination: the others contribute their first.
    yield "".join(choice[0] for choice in choices if choice)
    for turn in range(1, longest):
        yield "".join(choice[turn % len(choice)] for choice in choices if choice)
    if len(choices) <= 3:
        yield from ("".join(each) for each in islice(product(*(c or [""] for c in choices)), _MOST_ALTERNATIVES))


def _of_part(op: Any, value: Any, groups: dict[int, str]) -> Iterator[str]:
    name = str(op)
    if name == "LITERAL":
        yield chr(value)
    elif name == "NOT_LITERAL":
        yield next(each for each in _ANY if ord(each) != value)
    elif name == "ANY":
        yield "a"
    elif name == "IN":
        yield from _of_set(value)
    elif name == "BRANCH":
        for branch in value[1]:
            yield from islice(_of_sequence(branch, groups), 2)
    elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inner = value
        count = max(least, 1) if most else 0
        for each in _of_sequence(inner, groups):
            yield each * min(count, _LONGEST)
    elif name == "SUBPATTERN":
        for each in _of_sequence(value[-1], groups):
            if value[0] is not None:
                groups[value[0]] = each
            yield each
    elif name == "ATOMIC_GROUP":
        yield from _of_sequence(value, groups)
    elif name == "GROUPREF":
        yield groups.get(value, "")
    elif name == "ASSERT" and value[0] > 0:
        yield ""  # what follows may be what has to follow
        yield from _of_sequence(value[1], groups)
    elif name == "CATEGORY":
        yield _CATEGORIES.get(str(value), "-")
    else:
        yield ""  # anchors, and what may not follow


def _of_set(members: list[Any]) -> Iterator[str]:
    negated = bool(members) and members[0][0] is _constants.NEGATE
    if negated:
        yield next((each for each in _ANY if not any(_is_in(each, *member) for member in members[1:])), "")
        return
    for op, value in members[:4]:
        if op is _constants.RANGE:
            yield chr(value[0])
        elif op is _constants.LITERAL:
            yield chr(value)
        elif op is _constants.CATEGORY:
            yield _CATEGORIES.get(str(value), "-")


def _is_in(character: str, op: Any, value: Any) -> bool:
    if op is _constants.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if op is _constants.LITERAL:
        return bool(ord(character) == value)
    tests = {"DIGIT": str.isdigit, "WORD": lambda c: c.isalnum() or c == "_", "SPACE": str.isspace}
    kind = str(value).removeprefix("CATEGORY_")
    test = tests.get(kind.removeprefix("NOT_"))
    return test is not None and test(character) is not kind.startswith("NOT_")
