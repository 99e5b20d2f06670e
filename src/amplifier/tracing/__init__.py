"""What an agent did: from the event log of a session to a tree of turns, model calls and tool calls, as text and as a page."""

from ._comparison import Comparison, compare, write_comparison_page, write_comparison_text
from ._log_lines import LogEvent, UnreadLine
from ._log_parts import LogFollower, log_parts
from ._page import live_page, live_policy, write_page
from ._page_data import page_data
from ._rows import Row, RowKind, RowStatus
from ._text import write_summary, write_text
from ._totals import Totals, slowest, totals
from ._trace import Trace

__all__ = [
    "Comparison",
    "LogEvent",
    "LogFollower",
    "Row",
    "RowKind",
    "RowStatus",
    "Totals",
    "Trace",
    "UnreadLine",
    "compare",
    "live_page",
    "live_policy",
    "log_parts",
    "page_data",
    "slowest",
    "totals",
    "write_comparison_page",
    "write_comparison_text",
    "write_page",
    "write_summary",
    "write_text",
]
