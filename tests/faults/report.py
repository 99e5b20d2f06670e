"""``python -m tests.faults.report``: runs every fault on both backends and reports which hold, beside the published kernel.

The last line but one counts ours, the last one theirs. Further arguments go to pytest. The exit code is 0 only if every fault holds
on both backends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests._support.fault_tally import BACKENDS, Tally
from tests._support.faults import FAULTS
from tests._support.faults_published import HOLDS, PUBLISHED, VERSION


class _Listener:
    def __init__(self) -> None:
        self.tally = Tally()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.tally.note(report.nodeid, passed=report.passed)


def lines(tally: Tally) -> list[str]:
    """The whole report."""
    widest = max(map(len, FAULTS.values()))
    found = []
    for fault, title in FAULTS.items():
        ours = "  ".join(f"{backend} {'holds ' if tally.holds(fault, backend) else 'BROKEN'}" for backend in BACKENDS)
        found.append(f"{fault:5} {title:{widest}}  {ours}  published: {PUBLISHED[fault]}")
    theirs = sum(outcome == HOLDS for outcome in PUBLISHED.values())
    return [
        *found,
        f"{tally.line()} ({tally.tests} tests)",
        f"amplifier-core {VERSION}: {theirs} of {len(PUBLISHED)} hold, {len(PUBLISHED) - theirs} do not",
    ]


def main(arguments: list[str]) -> int:
    """Run, report, and return the exit code."""
    listener = _Listener()
    ended = pytest.main(["-q", str(Path(__file__).parent), *arguments], plugins=[listener])
    print(*lines(listener.tally), sep="\n")
    return 0 if ended == pytest.ExitCode.OK and listener.tally.is_whole() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
