"""Return texts and lists of any length, to measure how the time of a call grows with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from amplifier.conformance.inputs.values import with_texts

TEXTS = (12, 18, 24, 800, 12_800)
"""Lengths of texts.

At 24, an expression that tries every way to split a run takes seconds.
"""
LISTS = (24, 200, 800, 3_200)
"""Lengths of lists."""

_UNITS = ("a", "1", " ", "a ", "a.", '"', "<", "(")
_MAX_MARKS = 6

Grow = Callable[[Any, int], Any]
"""Returns a value of a length that is built from an ordinary one."""


def growing_texts(triggers: Iterable[str]) -> dict[str, Grow]:
    """Return ways to grow a text, by a phrase for the text that each repeats.

    Args:
        triggers: Texts that the module's patterns match.
    """
    ways: dict[str, Grow] = {"different words": _words}
    # Each text ends in a character that no pattern expects, so that a pattern tries everything.
    ways |= {f"many times {unit!r}": partial(_run, "", unit) for unit in _UNITS}
    marks = [text for text in triggers if text and not any(part in text for part in "/~\\")]
    for text in sorted(dict.fromkeys(marks), key=len)[:_MAX_MARKS]:
        ways[f"many times {text!r}"] = partial(_run, "", text)
        ways[f"{text!r} and a run of its end"] = partial(_run, text, text[-1])
    return ways


def growing_lists() -> dict[str, Grow]:
    """Return ways to grow a list, by a phrase for the items."""
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
