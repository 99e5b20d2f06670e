"""Two sessions side by side: their sums, and their steps, aligned where both did the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any, Final

import attrs

from amplifier._json import visible_text

from ._text import dollars, duration, number, row_facts, row_title
from ._totals import Totals, totals
from ._trace import Row, Trace

_LONGEST = 60


@attrs.frozen(kw_only=True)
class Comparison:
    """What is the same and what is different.

    Attributes:
        names: Of the two sessions.
        sums: Each a title, the value of the first, the value of the second, and how far the second is from the first.
        steps: The model calls and tool calls of both in their order; None where only the other one has a step.
        notes: Of both traces.
    """

    names: tuple[str, str]
    sums: list[tuple[str, str, str, str]]
    steps: list[tuple[Row | None, Row | None]]
    notes: list[str]


def compare(first: Trace, second: Trace) -> Comparison:
    """Compare two traces."""
    notes = [f"{trace.session_id}: {note}" for trace in (first, second) for note in trace.notes]
    return Comparison(
        names=(first.session_id, second.session_id),
        sums=_sums(totals(first), totals(second)),
        steps=_align(_steps(first), _steps(second)),
        notes=notes,
    )


def write_comparison_text(found: Comparison) -> str:
    """The comparison as text; safe to show in a terminal."""
    sums = _columns([("", *found.names, "difference"), *found.sums])
    steps = _columns([found.names, *((_step(one), _step(other)) for one, other in found.steps)])
    lines = [*sums, *(f"note: {note}" for note in found.notes), "", *steps]
    return "".join(f"{visible_text(line, multiline=False).rstrip()}\n" for line in lines)


_COUNTS: Final = ("turns", "steps", "model_calls", "tool_calls", "errors", "denied")
_TOKENS: Final = ("input_tokens", "output_tokens", "tokens")
_SUMS: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    *((name.replace("_", " "), name, number) for name in (*_COUNTS, *_TOKENS)),
    ("cost", "cost", dollars),
    ("time", "seconds", duration),
    ("time of model calls", "model_seconds", duration),
    ("time of tool calls", "tool_seconds", duration),
)
"""Of each sum its title, its name in `Totals`, and how it is written."""


def _sums(one: Totals, other: Totals) -> list[tuple[str, str, str, str]]:
    rows = []
    for title, name, written in _SUMS:
        before, after = getattr(one, name), getattr(other, name)
        rows.append((title, written(before) or "?", written(after) or "?", _difference(before or 0, after or 0)))
    return rows


def _difference(before: float | Decimal, after: float | Decimal) -> str:
    if before == after:
        return "="
    return f"{100 * (float(after) - float(before)) / float(before):+.0f} %" if before else "new"


def _steps(trace: Trace) -> list[Row]:
    return [row for row, _depth in trace.walk() if row.kind in ("model", "tool")]


def _align(one: list[Row], other: list[Row]) -> list[tuple[Row | None, Row | None]]:
    matcher = SequenceMatcher(None, [_what(row) for row in one], [_what(row) for row in other], autojunk=False)
    aligned: list[tuple[Row | None, Row | None]] = []
    for _tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        left: list[Row | None] = [*one[begin:end]]
        right: list[Row | None] = [*other[other_begin:other_end]]
        longest = max(len(left), len(right))
        left += [None] * (longest - len(left))
        right += [None] * (longest - len(right))
        aligned += zip(left, right, strict=True)
    return aligned


def _what(row: Row) -> str:
    """What makes two steps the same: a model call, or the same tool; two plans may ask two models."""
    return "model" if row.kind == "model" else f"tool {row.name}"


def _step(row: Row | None) -> str:
    if row is None:
        return "—"
    title = row_title(row)
    return ", ".join([title if len(title) <= _LONGEST else f"{title[:_LONGEST]}…", *row_facts(row)])


def _columns(table: Sequence[tuple[str, ...]]) -> list[str]:
    rows = [[visible_text(cell, multiline=False) for cell in row] for row in table]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
