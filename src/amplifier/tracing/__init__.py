"""What an agent did, and what it is doing now.

A trace is a tree of turns, model calls and tool calls, made from the event log of a session, as text and as a page. A task tree has
every task of a process that seems to hang, with its session, its module and the await it sits in. `export_traces` sends OpenTelemetry
traces to a collector.

_event_logs        files and lines of an event log
_trace             what a trace consists of
_text, page        what it adds up to, and how it and a comparison of two are shown
sessions           what a stored session did, and its messages as text; for commands and servers
_tasks             the tasks of a process
running_commands   the commands that run now, and how they are asked for their tasks
_otel              a collector for OpenTelemetry
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
