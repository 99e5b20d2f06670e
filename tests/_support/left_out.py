"""One line at the end of a run of `make test`: the tests that it has left out, and the command that runs them."""

from __future__ import annotations

import pytest

LEFT_OUT = "left out: tests marked slow, some of which need what `make parts` downloads; `make test-all` runs everything"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it, above the summary of pytest."""
    if "not slow" in terminalreporter.config.option.markexpr:
        terminalreporter.write_line(LEFT_OUT)
