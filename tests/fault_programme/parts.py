"""What a class of faults consists of: chunks that a process of its own can run, and what came out of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

BACKENDS = ("asyncio", "trio")

MOST_FAILURES = 20
"""Failures that one chunk keeps; it counts the rest."""


@attrs.frozen
class Chunk:
    """A part of a class that runs in one process.

    Args:
        name: Unique in its class; a later run of the same share recognises the chunk by it.
        arguments: Passed to the class's ``run``, as JSON.
    """

    name: str
    arguments: dict[str, Any] = attrs.field(factory=dict)


@attrs.define
class Outcome:
    """What a chunk has found.

    Args:
        cases: How many faults were injected, inputs tried or steps taken.
        failures: What did not hold, one sentence each, with what is needed to reproduce it.
        figures: Numbers for the table; figures of one name are added up over the chunks.
    """

    cases: int = 0
    failures: list[str] = attrs.field(factory=list)
    figures: dict[str, float] = attrs.field(factory=dict)

    def count(self, name: str, number: float = 1) -> None:
        """Add to a figure."""
        self.figures[name] = self.figures.get(name, 0) + number

    def fail(self, problem: str) -> None:
        """Note something that does not hold."""
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(problem)
        else:
            self.count("failures not listed")


@attrs.frozen
class FaultClass:
    """One class of faults.

    Args:
        name: On the command line.
        title: In the table.
        unit: What is counted.
        chunks: All chunks, given the share of the whole programme to run: 1 is all of it.
        run: Runs one chunk.
        quick_share: The share that takes a second or two per backend.
        seconds: Of running or of idleness after which a chunk that has not ended is killed and has failed.
    """

    name: str
    title: str
    unit: str
    chunks: Callable[[float], list[Chunk]]
    run: Callable[..., Outcome]
    quick_share: float
    seconds: float = 900


def part_of(whole: int, share: float) -> int:
    """A share of a number, at least 1."""
    return max(1, round(whole * share))


def ranges(name: str, total: int, size: int, **arguments: Any) -> list[Chunk]:
    """Chunks of ``first`` and ``count`` that cover ``total`` numbers."""
    return [
        Chunk(f"{name} {first}", {**arguments, "first": first, "count": min(size, total - first)})
        for first in range(0, total, size)
    ]
