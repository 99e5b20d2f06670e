"""The first difference between two requests, in words, and how much two requests have in common."""

from __future__ import annotations

from typing import Any

import attrs

from amplifier._json import format_path

_SHOWN = 120
_CONTEXT = 40
_MISSING = object()


@attrs.frozen
class Difference:
    """Where two requests differ first.

    Attributes:
        path: Such as ``$.messages[2].content``.
        expected: What is recorded there, in words.
        found: What was asked, in words.
    """

    path: str
    expected: str
    found: str


def first_difference(recorded: Any, asked: Any) -> Difference | None:
    """The first difference in the order of the recorded value; None if the values are equal."""
    waiting: list[tuple[tuple[str | int, ...], Any, Any]] = [((), recorded, asked)]
    while waiting:
        path, old, new = waiting.pop()
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [*old, *(key for key in new if key not in old)]
            waiting += reversed([((*path, key), old.get(key, _MISSING), new.get(key, _MISSING)) for key in keys])
        elif isinstance(old, list) and isinstance(new, list):
            both = [((*path, index), *pair) for index, pair in enumerate(zip(old, new, strict=False))]
            if len(old) != len(new):
                longer = old if len(old) > len(new) else new
                at = min(len(old), len(new))
                extra = ((*path, at), *((longer[at], _MISSING) if longer is old else (_MISSING, longer[at])))
                both.append(extra)
            waiting += reversed(both)
        elif type(old) is not type(new) or old != new:
            shown = _texts(old, new) if isinstance(old, str) and isinstance(new, str) else (_shown(old), _shown(new))
            return Difference(format_path(path, "$"), *shown)
    return None


def similarity(recorded: dict[str, Any], asked: dict[str, Any]) -> tuple[int, int, int]:
    """How much two requests have in common; larger is more.

    First the equal messages at the beginning, then the difference in length, then the equal characters at the beginning of the
    first message that differs.
    """
    old, new = recorded["messages"], asked["messages"]
    equal = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        equal += 1
    characters = 0
    if equal < min(len(old), len(new)):
        characters = common_prefix(str(old[equal]), str(new[equal]))
    return equal, -abs(len(old) - len(new)), characters


def common_prefix(one: str, other: str) -> int:
    """How many characters at the beginning of two texts are equal."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def _texts(old: str, new: str) -> tuple[str, str]:
    """Two texts, cut to the surroundings of their first difference."""
    if max(len(old), len(new)) <= _SHOWN:
        return repr(old), repr(new)
    start = max(0, common_prefix(old, new) - _CONTEXT)

    def cut(text: str) -> str:
        end = start + 2 * _CONTEXT
        return f"{'…' if start else ''}{text[start:end]!r}{'…' if end < len(text) else ''}"

    return cut(old), cut(new)


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
