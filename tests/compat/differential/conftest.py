"""The same programs on the published kernel and on this one.

The published kernel needs an interpreter of its own, because one process holds one ``amplifier_core``. It is named by
AMPLIFIER_REFERENCE_PYTHON, or is the one that ``make bench`` prepares. Without it nothing here is collected, nor when
it is another version than the one that runs the tests: versions differ in what ``repr`` escapes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REFERENCE_PYTHON = Path(
    os.environ.get("AMPLIFIER_REFERENCE_PYTHON") or ROOT / ".venv-bench" / "bin" / "python"
)


def _hindrance() -> str:
    if not REFERENCE_PYTHON.exists():
        return f"{REFERENCE_PYTHON} is missing (make bench)"
    ask = [str(REFERENCE_PYTHON), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    theirs = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    ours = ".".join(map(str, sys.version_info[:2]))
    return "" if theirs == ours else f"{REFERENCE_PYTHON} is Python {theirs} and this is {ours}"


HINDRANCE = _hindrance()
collect_ignore_glob = ["test_*.py"] if HINDRANCE else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every comparison slow: it starts two interpreters, and both kernels change rarely."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.slow)


def pytest_report_collectionfinish() -> str:
    """Report whether the comparison takes place."""
    if HINDRANCE:
        return f"NOT COLLECTED: tests/compat/differential, because {HINDRANCE}"
    return f"published kernel: {REFERENCE_PYTHON}"


@pytest.fixture(scope="session")
def reference_python() -> str:
    """The interpreter that has the published kernel."""
    return str(REFERENCE_PYTHON)
