"""Reports, at the end of a run, how many of the faults hold on each backend; with ``-v`` each one, beside the published kernel."""

from __future__ import annotations

import pytest

from tests.faults.fault_list import FAULTS
from tests.faults.fault_tally import BACKENDS, Tally
from tests.faults.faults_published import HOLDS, PUBLISHED, VERSION


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print "faults: N of 75 hold on asyncio, N on trio"; a fault holds where it was tested and nothing failed."""
    tally = Tally()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            tally.note(report.nodeid, passed=outcome == "passed")
    if tally.tests:
        for line in each_fault(tally) if terminalreporter.config.option.verbose > 0 else ():
            terminalreporter.write_line(line)
        terminalreporter.write_line(tally.line(), bold=True)


def each_fault(tally: Tally) -> list[str]:
    """One line for each fault, and the count of the published kernel."""
    widest = max(map(len, FAULTS.values()))
    found = []
    for fault, title in FAULTS.items():
        ours = "  ".join(
            f"{backend} {'holds ' if tally.holds(fault, backend) else 'BROKEN'}"
            for backend in BACKENDS
        )
        found.append(f"{fault:5} {title:{widest}}  {ours}  published: {PUBLISHED[fault]}")
    theirs = sum(outcome == HOLDS for outcome in PUBLISHED.values())
    return [
        *found,
        f"amplifier-core {VERSION}: {theirs} of {len(PUBLISHED)} hold, {len(PUBLISHED) - theirs} do not",
    ]
