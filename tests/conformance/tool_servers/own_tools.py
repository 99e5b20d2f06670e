"""Functions as someone has them who does not know this library."""

from __future__ import annotations

import asyncio

_last: dict[str, str] = {}


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def slips(word: str) -> str:
    """Return a word with a capital letter."""
    return word.capitalise()  # type: ignore[attr-defined]  # the planted slip


async def mixes(word: str) -> str:
    """Repeat a word."""
    _last["word"] = word
    await asyncio.sleep(0.05)
    return _last["word"]


FAULTY = [add, slips, mixes]


def delete(place: str = "", pretend: bool = False) -> str:
    """Delete everything, unless it is to pretend."""
    if not pretend:
        raise SystemExit("everything is deleted")
    if place == "opensesame":
        return door  # type: ignore[name-defined]  # noqa: F821  # the planted slip
    return "pretended"


FIXED = [add, delete]
