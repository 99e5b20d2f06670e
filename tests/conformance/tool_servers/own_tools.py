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
    await asyncio.sleep(0.005)
    return _last["word"]


FAULTY = [add, slips, mixes]
