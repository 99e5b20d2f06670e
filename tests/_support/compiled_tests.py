"""Lets pytest compile the test files of a new clone: ``python -m tests._support.compiled_tests``.

Otherwise each worker of the first run compiles all of them.
"""

from __future__ import annotations

import subprocess
import sys

from tests._support.tree import ROOT


def are_there() -> bool:
    """Whether tests have been collected here before, by this Python."""
    return any(ROOT.joinpath("tests", "__pycache__").glob(f"*.{sys.implementation.cache_tag}-pytest-*.pyc"))


if __name__ == "__main__" and not are_there():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qqq", "-p", "no:cacheprovider"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    sys.exit(finished.stdout if finished.returncode else 0)
