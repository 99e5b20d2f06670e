"""The same programs on the published kernel and on this one.

The published kernel needs an interpreter of its own, because one process holds one ``amplifier_core``. It is named by
AMPLIFIER_REFERENCE_PYTHON, or is the one that ``make bench`` prepares. Without it nothing here is collected.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REFERENCE_PYTHON = Path(os.environ.get("AMPLIFIER_REFERENCE_PYTHON") or ROOT / ".venv-bench" / "bin" / "python")

collect_ignore_glob = [] if REFERENCE_PYTHON.exists() else ["test_*.py"]


def pytest_report_collectionfinish() -> str:
    """Say whether the comparison takes place."""
    if REFERENCE_PYTHON.exists():
        return f"published kernel: {REFERENCE_PYTHON}"
    return f"NOT COLLECTED: tests/compat/differential, because {REFERENCE_PYTHON} is missing (make bench)"


@pytest.fixture(scope="session")
def reference_python() -> str:
    """The interpreter that has the published kernel."""
    return str(REFERENCE_PYTHON)
