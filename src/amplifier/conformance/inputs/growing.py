"""Texts and lists of any length, to see how the time of a call grows with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from amplifier.conformance.inputs.values import with_texts

TEXTS = (12, 18, 24, 800, 12_800)
"""Lengths of texts: an expression that tries every way to split a run takes seconds at 24."""
LISTS = (24, 200, 800, 3_200)

_UNITS = ("a", "1", " ", "a ", "a.", '"', "<", "(")
_MAX_MARKS = 6

Grow = Callable[[Any, int], Any]
"""Makes a value of a length from an ordinary one."""


def growing_texts(triggers: Iterable[str]) -> dict[str, Grow]:
    """Return ways to grow a text, by what they repeat.

    Args:
        triggers: Texts that the module's patterns match.
    """
    found: dict[str, Grow] = {"different words": _words}
    # The end is one that no pattern expects, so that a pattern tries all that it can.
    found |= {f"many times {unit!r}": partial(_run, "", unit) for unit in _UNITS}
    marks = [text for text in triggers if text and not any(part in text for part in "/~\\")]
    for text in sorted(dict.fromkeys(marks), key=len)[:_MAX_MARKS]:
        found[f"many times {text!r}"] = partial(_run, "", text)
        found[f"{text!r} and a run of its end"] = partial(_run, text, text[-1])
    return found


def growing_lists() -> dict[str, Grow]:
    """Return ways to grow a list."""
    return {"different items": _items, "equal items": lambda value, count: value[:1] * count}


def _words(value: str, length: int) -> str:
    return " ".join(f"w{number}" for number in range(length))[:length]


def _run(prefix: str, unit: str, value: str, length: int) -> str:
    return (prefix + unit * (length // len(unit) + 1))[: length - 1] + "!"


def _items(value: list[Any], count: int) -> list[Any]:
    return [_other(value[0], number) for number in range(count)]


def _other(item: Any, number: int) -> Any:
    if isinstance(item, dict | str):
        return with_texts(item, lambda text: f"{text} {number}")
    return number if type(item) is int else item
