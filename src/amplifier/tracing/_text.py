"""A trace as text for terminals, with totals, and the comparison of two traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any, Final

import attrs

from amplifier._internal.json import visible_text
from amplifier.events import TOOL_PRE

from ._event_logs import LogEvent
from ._trace import Row, RowStatus, Trace


@attrs.frozen(kw_only=True)
class Totals:
    """Sums over the session and its child sessions.

    Attributes:
        lines: Number of lines of the event logs.
        sessions: Number of sessions.
        turns: Number of turns.
        model_calls: Number of model calls.
        tool_calls: Number of tool calls.
        approvals: Number of questions to the user.
        errors: Number of failed calls and events.
        denied: Number of denied calls and questions.
        cancelled: Number of cancelled turns and calls. Calls in a cancelled turn are not counted.
        unread: Number of lines that could not be read.
        input_tokens: Input tokens of all model calls.
        output_tokens: Output tokens of all model calls.
        cache_read_tokens: Input tokens that services read from their prompt caches.
        cost: Cost in dollars, or None if no model call has one.
        seconds: Duration of the turns of the session itself, including its child sessions.
        model_seconds: Duration of all model calls. Simultaneous calls are added up.
        tool_seconds: Duration of all tool calls, without the child sessions inside.
    """

    lines: int = 0
    sessions: int = 0
    turns: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    approvals: int = 0
    errors: int = 0
    denied: int = 0
    cancelled: int = 0
    unread: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost: Decimal | None = None
    seconds: float = 0.0
    model_seconds: float = 0.0
    tool_seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Number of model calls and tool calls."""
        return self.model_calls + self.tool_calls

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    @property
    def cache_hit_rate(self) -> float:
        """The share of the input that came from prompt caches."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0


def totals(trace: Trace) -> Totals:
    """Add up a trace."""
    rows = trace.rows
    own = self_seconds(trace)
    costs = [row.cost for row in rows if row.cost is not None]

    def count(kind: str) -> int:
        return sum(row.kind == kind for row in rows)

    return Totals(
        lines=trace.lines,
        sessions=count("session"),
        turns=count("turn"),
        model_calls=count("model"),
        tool_calls=count("tool"),
        approvals=count("approval"),
        errors=sum(
            row.status == "error" and row.kind not in ("session", "turn", "unread") for row in rows
        ),
        denied=sum(row.status == "denied" and not _is_about_call(row) for row in rows),
        cancelled=sum(_is_cancelled(row) and not _is_in_cancelled(row, rows) for row in rows),
        unread=sum(len(row.events) for row in rows if row.kind == "unread"),
        input_tokens=sum(row.input_tokens or 0 for row in rows),
        output_tokens=sum(row.output_tokens or 0 for row in rows),
        cache_read_tokens=sum(row.cache_read_tokens or 0 for row in rows),
        cost=sum(costs, Decimal(0)) if costs else None,
        seconds=sum(
            row.seconds or 0.0
            for row in rows
            if row.kind == "turn" and row.session_id == trace.session_id
        ),
        model_seconds=sum(row.seconds or 0.0 for row in rows if row.kind == "model"),
        tool_seconds=sum(own[row.number] for row in rows if row.kind == "tool"),
    )


def _is_cancelled(row: Row) -> bool:
    return row.status == "cancelled" and row.kind != "session"


def _is_in_cancelled(row: Row, rows: Sequence[Row]) -> bool:
    """Return whether a row is a turn or call that was cancelled and is counted as such."""
    while row.parent is not None:
        row = rows[row.parent]
        if _is_cancelled(row):
            return True
    return False


def _is_about_call(row: Row) -> bool:
    """Return whether a row is the approval of a tool call, whose own row shows the decision."""
    names = [event.text("event") for event in row.events if isinstance(event, LogEvent)]
    return row.kind == "approval" and TOOL_PRE in names


def self_seconds(trace: Trace) -> list[float]:
    """Return the durations of all rows less those of the rows below them, or 0 if unknown."""
    own = [row.seconds or 0.0 for row in trace.rows]
    for row in trace.rows:
        if row.parent is not None:
            own[row.parent] -= row.seconds or 0.0
    return [max(0.0, seconds) for seconds in own]


def slowest(trace: Trace, most: int = 5) -> list[Row]:
    """Return the slowest calls, without approvals. Their durations exclude the rows below them."""
    own = self_seconds(trace)
    timed = [row for row in trace.rows if row.kind in ("model", "tool") and own[row.number] > 0]
    return sorted(timed, key=lambda row: (-own[row.number], row.number))[:most]


# ── one session ──

STATUS_WORDS: dict[RowStatus, str] = {
    "": "",
    "ok": "",
    "error": "failed",
    "denied": "denied",
    "cancelled": "cancelled",
    "open": "no end in the log",
}
_MAX_TEXT = 100


def write_text(trace: Trace) -> str:
    """Return the whole trace as text that is safe to show in a terminal."""
    return "".join(f"{line}\n" for line in _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    yield one_line(f"session {trace.session_id}")
    yield write_summary(totals(trace))
    for note in trace.notes:
        yield f"note: {one_line(note)}"
    slow = slowest(trace)
    if slow:
        own = self_seconds(trace)
        yield ""
        yield "slowest:"
        for row in slow:
            yield f"  {duration(own[row.number]):>10}  {one_line(row_title(row))}"
    if trace.rows:
        yield ""
    first = min((row.start for row in trace.rows if row.start is not None), default=0.0)
    for row, depth in trace.walk():
        moment = "" if row.start is None else f"{row.start - first:.3f}"
        parts = [row_title(row), *row_facts(row)]
        line = one_line("  ".join(filter(None, parts)))
        yield f"{moment:>10}  {'  ' * min(depth, 20)}{line}"
        if row.text:
            text = row.text if len(row.text) <= _MAX_TEXT else f"{row.text[:_MAX_TEXT]}…"
            yield f"{'':>10}  {'  ' * min(depth, 20)}│ {one_line(text)}"


def row_title(row: Row) -> str:
    """Return the kind and the name of a row."""
    if row.kind in ("event", "hook", "cancel", "unread", "turn", "approval", "compaction"):
        return row.name
    model = f" ({row.model})" if row.model and row.model != row.name else ""
    return f"{row.kind} {row.name}{model}"


def row_facts(row: Row) -> list[str]:
    """Return status, duration, tokens and cost of a row as texts."""
    facts = [STATUS_WORDS[row.status], duration(row.seconds) if row.has_duration else ""]
    if row.input_tokens is not None or row.output_tokens is not None:
        facts.append(f"{number(row.input_tokens or 0)} → {number(row.output_tokens or 0)} tokens")
    facts.append(dollars(row.cost))
    if row.first_token is not None:
        facts.append(f"first token after {duration(row.first_token)}")
    return [fact for fact in facts if fact]


def write_summary(total: Totals) -> str:
    """Return the totals as one line."""
    cached = f" ({total.cache_hit_rate:.0%} of the input cached)" if total.cache_read_tokens else ""
    facts = [
        count(total.turns, "turn"),
        count(total.model_calls, "model call"),
        count(total.tool_calls, "tool call"),
        f"{number(total.tokens)} tokens{cached}",
        dollars(total.cost),
        duration(total.seconds),
        count(total.sessions - 1, "child session") if total.sessions > 1 else "",
        count(total.errors, "error") if total.errors else "",
        f"{number(total.denied)} denied" if total.denied else "",
        f"{number(total.cancelled)} cancelled" if total.cancelled else "",
        f"{count(total.unread, 'line')} not read" if total.unread else "",
    ]
    return ", ".join(filter(None, facts))


def one_line(text: str) -> str:
    """Return a text as one line that is safe to show."""
    return visible_text(text, multiline=False)


# ── numbers as people read them, the same in text and on pages ──


def duration(seconds: float | None) -> str:
    """Format a duration, such as 350 ms, 2.50 s or 3 min 20 s. None gives an empty text."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number(value: int) -> str:
    """Format a number with separated thousands."""
    return f"{value:,}"


def count(value: int, one: str, many: str | None = None) -> str:
    """Format a number with its noun in singular or plural."""
    return f"{number(value)} {one if value == 1 else many or f'{one}s'}"


def dollars(cost: Decimal | None) -> str:
    """Format a cost, such as $0.0123. None gives an empty text."""
    if cost is None:
        return ""
    digits = 2 if cost == 0 or abs(cost) >= 1 else 4 if abs(cost) >= Decimal("0.001") else 6
    return f"${cost:,.{digits}f}"


# ── two sessions ──

_MAX_STEP = 60


@attrs.frozen(kw_only=True)
class Comparison:
    """Comparison of two traces.

    Attributes:
        names: Ids of the two sessions.
        sums: Rows of a title, the values of both traces, and their difference.
        steps: Aligned model calls and tool calls of both. None stands for a missing step.
        notes: Notes of both traces.
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


def write_comparison_text(comparison: Comparison) -> str:
    """Return the comparison as text that is safe to show in a terminal."""
    pairs = [(_step(one), _step(other)) for one, other in comparison.steps]
    sums = _columns([("", *comparison.names, "difference"), *comparison.sums])
    steps = _columns([comparison.names, *pairs])
    lines = [*sums, *(f"note: {note}" for note in comparison.notes), "", *steps]
    return "".join(f"{visible_text(line, multiline=False).rstrip()}\n" for line in lines)


_COUNTS: Final = ("turns", "steps", "model_calls", "tool_calls", "errors", "denied")
_TOKENS: Final = ("input_tokens", "output_tokens", "tokens")
# Rows of a title, a name in `Totals`, and a function that formats the value.
_SUMS: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    *((name.replace("_", " "), name, number) for name in (*_COUNTS, *_TOKENS)),
    ("cost", "cost", dollars),
    ("time", "seconds", duration),
    ("time of model calls", "model_seconds", duration),
    ("time of tool calls", "tool_seconds", duration),
)


def _sums(one: Totals, other: Totals) -> list[tuple[str, str, str, str]]:
    rows = []
    for title, name, shown in _SUMS:
        before, after = getattr(one, name), getattr(other, name)
        difference = _difference(before or 0, after or 0)
        rows.append((title, shown(before) or "?", shown(after) or "?", difference))
    return rows


def _difference(before: float | Decimal, after: float | Decimal) -> str:
    if before == after:
        return "="
    return f"{100 * (float(after) - float(before)) / float(before):+.0f} %" if before else "new"


def _steps(trace: Trace) -> list[Row]:
    return [row for row, _depth in trace.walk() if row.kind in ("model", "tool")]


def _align(one: list[Row], other: list[Row]) -> list[tuple[Row | None, Row | None]]:
    names, other_names = [_step_name(row) for row in one], [_step_name(row) for row in other]
    matcher = SequenceMatcher(None, names, other_names, autojunk=False)
    aligned: list[tuple[Row | None, Row | None]] = []
    for _tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        left: list[Row | None] = [*one[begin:end]]
        right: list[Row | None] = [*other[other_begin:other_end]]
        length = max(len(left), len(right))
        left += [None] * (length - len(left))
        right += [None] * (length - len(right))
        aligned += zip(left, right, strict=True)
    return aligned


def _step_name(row: Row) -> str:
    """Return the name by which steps are aligned. Models do not matter, as plans may differ."""
    return "model" if row.kind == "model" else f"tool {row.name}"


def _step(row: Row | None) -> str:
    if row is None:
        return "—"
    title = row_title(row)
    if len(title) > _MAX_STEP:
        title = f"{title[:_MAX_STEP]}…"
    return ", ".join([title, *row_facts(row)])


def _columns(table: Sequence[tuple[str, ...]]) -> list[str]:
    rows = [[one_line(cell) for cell in row] for row in table]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells))
    return lines
