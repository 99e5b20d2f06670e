"""Counts, at the end of a run, how often sessions were cancelled."""

from __future__ import annotations

import pytest

from tests._support.worlds import TRIALS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print "sweeps: N scenarios, N runs, each cancelled at another await"."""
    if TRIALS:
        runs = f"{sum(TRIALS)} runs, each cancelled at another await"
        terminalreporter.write_line(f"sweeps: {len(TRIALS)} scenarios, {runs}", bold=True)
