"""Lets pytest compile the test files of a new clone, on every processor: ``python -m tests._support.compiled_tests``.

Otherwise each worker of the first run compiles all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests._support.tree import ROOT


def are_there() -> bool:
    """Whether tests have been collected here before, by this Python."""
    return any(
        ROOT.joinpath("tests", "__pycache__").glob(f"*.{sys.implementation.cache_tag}-pytest-*.pyc")
    )


def shares() -> list[list[str]]:
    """The test files, dealt out to the processors by their size."""
    files = sorted(ROOT.joinpath("tests").rglob("test_*.py"), key=lambda file: file.stat().st_size)
    files = [file for file in files if "corpus" not in file.parts]
    count = os.cpu_count() or 1
    return [[str(file) for file in files[first::count]] for first in range(count)]


if __name__ == "__main__" and not are_there():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qqq", "-p", "no:cacheprovider"]
    started = [
        subprocess.Popen(
            [*command, *share], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for share in shares()
    ]
    for process in started:
        process.wait()  # an error in a test file is for the run to report
