"""Traces of sessions from their event logs, and the running tasks of a process.

A trace is a tree of turns, model calls and tool calls, as text or as a page. A task tree shows
every task of a process that seems to hang, with its session, its module and its current await.
`export_traces` sends OpenTelemetry traces to a collector.
"""

from ._event_logs import LogEvent, LogFollower, UnreadLine, log_parts
from ._otel import export_traces
from ._tasks import CodeLine, TaskReport, TaskTree, ThreadReport, task_tree, tasks_on_signal
from ._text import (
    Comparison,
    Totals,
    compare,
    slowest,
    totals,
    write_comparison_text,
    write_summary,
    write_text,
)
from ._trace import Row, RowKind, RowStatus, Trace
from .page import live_page, live_policy, page_data, write_page

__all__ = [
    "CodeLine",
    "Comparison",
    "LogEvent",
    "LogFollower",
    "Row",
    "RowKind",
    "RowStatus",
    "TaskReport",
    "TaskTree",
    "ThreadReport",
    "Totals",
    "Trace",
    "UnreadLine",
    "compare",
    "export_traces",
    "live_page",
    "live_policy",
    "log_parts",
    "page_data",
    "slowest",
    "task_tree",
    "tasks_on_signal",
    "totals",
    "write_comparison_text",
    "write_page",
    "write_summary",
    "write_text",
]
