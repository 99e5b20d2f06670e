"""Prints, at the end of a run, what the chunks of each class have found, and keeps it as ``.fault-programme/faults.md``."""

from __future__ import annotations

import pytest

from .catalogue import CLASSES
from .launch import FOLDER
from .parts import Outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One row for each class of which something has run, in this process or in those of pytest-xdist."""
    found: dict[str, list[Outcome]] = {}
    for kind in ("passed", "failed"):
        for report in terminalreporter.getreports(kind):
            for name, value in report.user_properties:
                if name == "outcome":
                    fault_class, outcome = value  # as `test_programme.py` records it
                    found.setdefault(fault_class, []).append(Outcome(**outcome))
    if found:
        text = table(found)
        terminalreporter.write_line(text)
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / "faults.md").write_text(f"{text}\n")


def table(found: dict[str, list[Outcome]]) -> str:
    """What was found, as a Markdown table."""
    rows = ["| class | what | chunks | cases | failures | figures |", "|---|---|---|---|---|---|"]
    for name in sorted(found, key=list(CLASSES).index):
        outcomes = found[name]
        figures: dict[str, float] = {}
        for outcome in outcomes:
            for words, number in outcome.figures.items():
                figures[words] = figures.get(words, 0) + number
        shown = "; ".join(f"{words}: {number:,.4g}" for words, number in figures.items())
        cases = f"{sum(outcome.cases for outcome in outcomes):,} {CLASSES[name].unit}"
        failures = sum(len(outcome.failures) for outcome in outcomes)
        rows.append(
            f"| {name} | {CLASSES[name].title} | {len(outcomes)} | {cases} | {failures} | {shown} |"
        )
    return "\n".join(rows)
