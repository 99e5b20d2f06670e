"""Two sessions side by side: their sums, and their steps, aligned where both did the same."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from difflib import SequenceMatcher
from html import escape

import attrs

from amplifier._json import visible_text

from ._page import style_page
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
    table = [("", *found.names, "difference"), *found.sums]
    lines = _columns(table)
    lines += [f"note: {note}" for note in found.notes]
    lines.append("")
    lines += _columns([found.names, *((_step(one), _step(other)) for one, other in found.steps)])
    return "".join(f"{visible_text(line, multiline=False).rstrip()}\n" for line in lines)


def write_comparison_page(found: Comparison) -> str:
    """The comparison as one self-contained HTML page without scripts."""
    sums = _table(("", *found.names, "difference"), found.sums)
    steps = _table(found.names, ((_step(one), _step(other)) for one, other in found.steps))
    notes = "".join(f"<p>{_text(note)}</p>" for note in found.notes)
    title = _text(f"{found.names[0]} and {found.names[1]}")
    body = f"<h1>{title}</h1>{notes}<h2>Sums</h2>{sums}<h2>Steps</h2>{steps}"
    return style_page(title, body)


def _sums(one: Totals, other: Totals) -> list[tuple[str, str, str, str]]:
    counts = (
        "turns",
        "steps",
        "model_calls",
        "tool_calls",
        "errors",
        "denied",
        "input_tokens",
        "output_tokens",
        "tokens",
    )
    rows = []
    for name in counts:
        before, after = getattr(one, name), getattr(other, name)
        rows.append((name.replace("_", " "), number(before), number(after), _difference(before, after)))
    costs = [Decimal(0) if total.cost is None else total.cost for total in (one, other)]
    rows.append(("cost", dollars(one.cost) or "?", dollars(other.cost) or "?", _difference(*costs)))
    for name in ("seconds", "model_seconds", "tool_seconds"):
        before, after = getattr(one, name), getattr(other, name)
        title = {"seconds": "time", "model_seconds": "time of model calls", "tool_seconds": "time of tool calls"}[name]
        rows.append((title, duration(before), duration(after), _difference(before, after)))
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


def _columns(table: Iterable[tuple[str, ...]]) -> list[str]:
    rows = [[visible_text(cell, multiline=False) for cell in row] for row in table]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    titles = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: str) -> str:
    return escape(visible_text(value, multiline=False))
