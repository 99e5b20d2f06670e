"""The tables of benchmarks/RESULTS.md and the plot of docs/reference/performance.md, from the results of a full run.

    make bench && .venv/bin/python -m benchmarks.page

The page is written by hand; the text between its two marks, and the plot, are replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.board import PUBLISHED, RESULTS, read, shown
from benchmarks.plot import bars

PAGE = Path("benchmarks/RESULTS.md")
PLOT = Path("docs/reference/performance.svg")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

GROUPS = {
    "hooks": "Events",
    "coordinator": "The coordinator",
    "sessions": "Sessions",
    "turns": "Turns",
    "rivals": "The same turn on other libraries",
    "long_conversations": "A turn after a long conversation",
    "model_roundtrip": "Models and JSON",
    "memory": "Memory",
    "cancellation": "Stopping a turn",
    "import": "Import and size",
    "growth": "Growth",
}


def results_section(results: dict[str, Any]) -> str:
    """The part of the page that a run writes."""
    about, rows = results["about"], results["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    missed = [row for row in rows if not row["met"]]
    where = f"with Python {about['python']} on {about['machine']}"
    parts = [
        f"Measured on {about['date']} by `make bench` {where}. Compared: {versions}.",
        "",
        f"Of {sum(row['target'] is not None for row in rows)} targets {_missed_words(missed)}.",
    ]
    for group, title in GROUPS.items():
        chosen = [row for row in rows if row["group"] == group]
        if chosen:
            parts += ["", f"### {title}", "", *table(chosen)]
    return "\n".join(parts)


def _missed_words(missed: list[dict[str, Any]]) -> str:
    if not missed:
        return "none was missed"
    return (
        "1 was missed; its median is bold"
        if len(missed) == 1
        else f"{len(missed)} were missed; their medians are bold"
    )


def _with_rival(row: dict[str, Any]) -> str:
    return row["work"] if row["rival"] in ("", PUBLISHED) else f"{row['work']} ({row['rival']})"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One group as a Markdown table, and the remarks on its rows."""
    lines = ["| work | theirs | ours | median | quartiles | target |", "|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        spread = f"{shown(row['low'])} … {shown(row['high'])}" if row["low"] != row["high"] else ""
        value = _value(row) if row["met"] else f"**{_value(row)}**"
        lines.append(
            f"| {_with_rival(row)} | {row['theirs']} | {row['ours']} | {value} | {spread} | {_target(row)} |"
        )
    notes = dict.fromkeys(row["note"] for row in rows if row["note"])
    return [*lines, *(f"\n{note[0].upper()}{note[1:]}." for note in notes)]


def _value(row: dict[str, Any]) -> str:
    return (
        f"{shown(row['value'])}×" if row["unit"] == "x" else f"{_plain(row['value'])} {row['unit']}"
    )


def _target(row: dict[str, Any]) -> str:
    if row["target"] is None:
        return ""
    unit = "×" if row["unit"] == "x" else f" {row['unit']}"
    return f"{'≥' if row['sense'] == 'at least' else '≤'} {row['target']:g}{unit}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else shown(value)


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
    ratios = [
        row
        for row in results["rows"]
        if row["unit"] == "x" and row["sense"] == "at least" and row["target"]
    ]
    ratios.sort(key=lambda row: order.index(row["group"]))
    chosen = [
        (_with_rival(row), row["value"], row["low"], row["high"], row["target"]) for row in ratios
    ]
    PLOT.write_text(
        bars(chosen, title="How many times faster, and the target of each"), encoding="utf-8"
    )
    print(f"wrote {PAGE} and {PLOT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
