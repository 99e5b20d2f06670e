"""Write the plot and the table of docs/reference/performance.md from the results of a full run.

    make bench && .venv/bin/python -m benchmarks.page

The page is written by hand. The text between its two marks, and the plot, are replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.board import PUBLISHED, RESULTS, read, shown
from benchmarks.plot import bars

PAGE = Path("docs/reference/performance.md")
PLOT = Path("docs/reference/performance.svg")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

GROUPS = {
    "hooks": "Events",
    "coordinator": "The coordinator",
    "sessions": "Sessions",
    "turns": "Turns",
    "rivals": "The same turn on other libraries",
    "long_conversations": "A turn after a long conversation",
    "streams": "Streamed turns",
    "model_roundtrip": "Models and JSON",
    "memory": "Memory",
    "cancellation": "Stopping a turn",
    "import": "Import and size",
}

# One screen of rows, the largest and the smallest of each group among them.
PLOTTED = {
    ("emit, 0 handlers", PUBLISHED),
    ("emit, 10 handlers", PUBLISHED),
    ("emit, 100 handlers, 200 KB", PUBLISHED),
    ("emit, 100 handlers with the whole payload, 200 KB", PUBLISHED),
    ("emit, 10 handlers", "pluggy"),
    ("collect_contributions, 100 async contributors", PUBLISHED),
    ("mount and unmount", PUBLISHED),
    ("session: open, turn, close", PUBLISHED),
    ("session from entry points, warm", PUBLISHED),
    ("turn: 2 model calls, 1 tool, 8 events", PUBLISHED),
    ("the same turn", "pydantic-ai"),
    ("the same turn", "openai-agents"),
    ("the same turn", "LangGraph, ReAct agent"),
    ("one model call after 1,000 messages", "pydantic-ai"),
    ("one model call after 1,000 messages", "openai-agents"),
    ("read 200 messages with blocks", "pydantic 2"),
    ("write 200 messages with blocks", "pydantic 2"),
    ("memory of a live session, of 10,000", PUBLISHED),
    ("stopping at once, a tool asleep: p50", PUBLISHED),
    ("cold import of a session", PUBLISHED),
    ("size of the base install", PUBLISHED),
}


def results_section(results: dict[str, Any]) -> str:
    """Return the part of the page that a run writes."""
    about, rows = results["about"], results["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    where = f"with Python {about['python']} on {about['machine']}"
    parts = [f"Measured on {about['date']} by `make bench` {where}. Compared: {versions}."]
    for group, title in GROUPS.items():
        chosen = [row for row in rows if row["group"] == group]
        if chosen:
            parts += ["", f"### {title}", "", *table(chosen)]
    return "\n".join(parts)


def _with_rival(row: dict[str, Any]) -> str:
    return row["work"] if row["rival"] == PUBLISHED else f"{row['work']} ({row['rival']})"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return one group as a Markdown table, and the remarks on its rows."""
    lines = ["| work | theirs | ours | ratio | quartiles |", "|---|--:|--:|--:|--:|"]
    for row in rows:
        spread = f"{shown(row['low'])} … {shown(row['high'])}" if row["low"] != row["high"] else ""
        figures = f"{row['theirs']} | {row['ours']} | {shown(row['value'])}×"
        lines.append(f"| {_with_rival(row)} | {figures} | {spread} |")
    notes = dict.fromkeys(row["note"] for row in rows if row["note"])
    return [*lines, *(f"\n{note[0].upper()}{note[1:]}." for note in notes)]


def main() -> int:
    results = read()
    if not results or results["about"]["quick"]:
        print(f"{RESULTS} holds no results of a full run; run: make bench", file=sys.stderr)
        return 1
    text = PAGE.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        print(f"{PAGE} lacks {BEGIN} or {END}", file=sys.stderr)
        return 1
    PAGE.write_text(
        f"{before}{BEGIN}\n\n{results_section(results)}\n\n{END}{after}", encoding="utf-8"
    )
    order = list(GROUPS)
    chosen = [row for row in results["rows"] if (row["work"], row["rival"]) in PLOTTED]
    chosen.sort(key=lambda row: order.index(row["group"]))
    plotted = [(_with_rival(row), row["value"], row["low"], row["high"]) for row in chosen]
    title = "How many times faster, smaller or lighter"
    PLOT.write_text(bars(plotted, title=title), encoding="utf-8")
    print(f"wrote {PAGE} and {PLOT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
