"""Counts, at the end of a run, how many of the faults hold on each backend."""

from __future__ import annotations

import re

import pytest

from tests._support.faults import FAULTS

_NAME = re.compile(r"tests/faults/.*::test_f(\d\d[a-z]?)_\w*\[(.+)\]$")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say "faults: N of 75 hold on asyncio, N on trio"; a fault holds where it was tested and nothing failed."""
    passed: dict[str, set[str]] = {"asyncio": set(), "trio": set()}
    failed: dict[str, set[str]] = {"asyncio": set(), "trio": set()}
    for outcome, found in (("passed", passed), ("failed", failed), ("error", failed)):
        for report in terminalreporter.getreports(outcome):
            match = _NAME.search(report.nodeid)
            if match is not None:
                for backend in found.keys() & set(match[2].split("-")):
                    found[backend].add(f"F{match[1]}")
    held = {backend: len(passed[backend] - failed[backend]) for backend in passed}
    if any(passed.values()) or any(failed.values()):
        line = f"faults: {held['asyncio']} of {len(FAULTS)} hold on asyncio, {held['trio']} on trio"
        terminalreporter.write_line(line, bold=True)
