"""A trace as text for terminals: a summary, what was slow, and one line for each row."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from amplifier._json import visible_text

from ._totals import Totals, self_seconds, slowest, totals
from ._trace import Row, RowStatus, Trace

STATUS_WORDS: dict[RowStatus, str] = {
    "": "",
    "ok": "",
    "error": "failed",
    "denied": "denied",
    "cancelled": "cancelled",
    "open": "no end in the log",
}
_LONGEST = 100


def write_text(trace: Trace) -> str:
    """The whole trace; safe to show in a terminal."""
    return "".join(f"{line}\n" for line in _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    yield _safe(f"session {trace.session_id}")
    yield write_summary(totals(trace))
    for note in trace.notes:
        yield f"note: {_safe(note)}"
    slow = slowest(trace)
    if slow:
        own = self_seconds(trace)
        yield ""
        yield "slowest:"
        for row in slow:
            yield f"  {duration(own[row.number]):>10}  {_safe(row_title(row))}"
    if trace.rows:
        yield ""
    first = min((row.start for row in trace.rows if row.start is not None), default=0.0)
    for row, depth in trace.walk():
        moment = "" if row.start is None else f"{row.start - first:.3f}"
        parts = [row_title(row), *row_facts(row)]
        line = _safe("  ".join(filter(None, parts)))
        yield f"{moment:>10}  {'  ' * min(depth, 20)}{line}"
        if row.text:
            text = row.text if len(row.text) <= _LONGEST else f"{row.text[:_LONGEST]}…"
            yield f"{'':>10}  {'  ' * min(depth, 20)}│ {_safe(text)}"


def row_title(row: Row) -> str:
    """The kind and the name of a row."""
    if row.kind in ("event", "hook", "cancel", "unread", "turn", "approval", "compaction"):
        return row.name
    model = f" ({row.model})" if row.model and row.model != row.name else ""
    return f"{row.kind} {row.name}{model}"


def row_facts(row: Row) -> list[str]:
    """How a row ended, how long it took, its tokens and cost."""
    facts = [STATUS_WORDS[row.status], duration(row.seconds) if row.has_duration else ""]
    if row.input_tokens is not None or row.output_tokens is not None:
        facts.append(f"{number(row.input_tokens or 0)} → {number(row.output_tokens or 0)} tokens")
    facts.append(dollars(row.cost))
    if row.first_token is not None:
        facts.append(f"first token after {duration(row.first_token)}")
    return [fact for fact in facts if fact]


def write_summary(total: Totals) -> str:
    """A trace in one line."""
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


def _safe(text: str) -> str:
    return visible_text(text, multiline=False)


# ── numbers as people read them, the same in text and on pages ──


def duration(seconds: float | None) -> str:
    """Such as 350 ms, 2.50 s or 3 min 20 s; empty if it is not known."""
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
    """With separated thousands."""
    return f"{value:,}"


def count(value: int, one: str, many: str | None = None) -> str:
    """A number and what is counted."""
    return f"{number(value)} {one if value == 1 else many or f'{one}s'}"


def dollars(cost: Decimal | None) -> str:
    """Such as $0.0123; empty if it is not known."""
    if cost is None:
        return ""
    digits = 2 if cost == 0 or abs(cost) >= 1 else 4 if abs(cost) >= Decimal("0.001") else 6
    return f"${cost:,.{digits}f}"
