"""What a trace adds up to: counts, tokens, cost and times, and which rows took longest."""

from __future__ import annotations

from decimal import Decimal

import attrs

from amplifier.events import TOOL_PRE

from ._event_logs import LogEvent
from ._trace import Row, Trace


@attrs.frozen(kw_only=True)
class Totals:
    """Sums over the session and its child sessions.

    Attributes:
        lines: Of the event log.
        seconds: The turns of the session itself; what its child sessions take is part of that.
        model_seconds: All model calls; calls at the same time count each.
        tool_seconds: All tool calls, without the child sessions inside.
        cache_read_tokens: What of the input the services read from their prompt caches.
        cost: In dollars; None if no model call has one.
        errors: Calls and events that failed.
        unread: Lines that could not be read.
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
        """Model calls and tool calls."""
        return self.model_calls + self.tool_calls

    @property
    def tokens(self) -> int:
        """Of all requests and answers."""
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
        errors=sum(row.status == "error" and row.kind not in ("session", "turn", "unread") for row in rows),
        denied=sum(row.status == "denied" and not _is_about_call(row) for row in rows),
        cancelled=sum(row.status == "cancelled" and row.kind != "session" for row in rows),
        unread=sum(len(row.events) for row in rows if row.kind == "unread"),
        input_tokens=sum(row.input_tokens or 0 for row in rows),
        output_tokens=sum(row.output_tokens or 0 for row in rows),
        cache_read_tokens=sum(row.cache_read_tokens or 0 for row in rows),
        cost=sum(costs, Decimal(0)) if costs else None,
        seconds=sum(row.seconds or 0.0 for row in rows if row.kind == "turn" and row.session_id == trace.session_id),
        model_seconds=sum(row.seconds or 0.0 for row in rows if row.kind == "model"),
        tool_seconds=sum(own[row.number] for row in rows if row.kind == "tool"),
    )


def _is_about_call(row: Row) -> bool:
    """Whether it is a decision about a tool call, which has a row of its own that says the same."""
    about = [each.text("event") for each in row.events if isinstance(each, LogEvent)]
    return row.kind == "approval" and TOOL_PRE in about


def self_seconds(trace: Trace) -> list[float]:
    """How long each row took without the rows below it; 0 for a row without a duration."""
    own = [row.seconds or 0.0 for row in trace.rows]
    for row in trace.rows:
        if row.parent is not None:
            own[row.parent] -= row.seconds or 0.0
    return [max(0.0, seconds) for seconds in own]


def slowest(trace: Trace, most: int = 5) -> list[Row]:
    """The calls that took longest, without what is below them; the longest first. The time of a person is not the agent's."""
    own = self_seconds(trace)
    timed = [row for row in trace.rows if row.kind in ("model", "tool") and own[row.number] > 0]
    return sorted(timed, key=lambda row: (-own[row.number], row.number))[:most]
