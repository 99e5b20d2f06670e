"""Counts, at the end of a run, how many of the faults hold on each backend."""

from __future__ import annotations

import pytest

from tests._support.fault_tally import Tally


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print "faults: N of 75 hold on asyncio, N on trio"; a fault holds where it was tested and nothing failed."""
    tally = Tally()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            tally.note(report.nodeid, passed=outcome == "passed")
    if tally.tests:
        terminalreporter.write_line(tally.line(), bold=True)
