"""Running the suite in `corpus`, which is written as suites of published modules are, in a process of its own."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from tests._support.programs import run_program

SUITE = Path(__file__).with_name("corpus")
LEAST = 390
"""How many tests there are at least; fewer means that some were not collected."""


def run_suite(python: str, *options: str, without: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the suite.

    Args:
        python: The interpreter; it needs pytest.
        options: More for pytest, such as the plugin that installs the alias.
        without: Files to leave out.

    Returns:
        How many tests passed, and what pytest wrote.
    """
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        f"--rootdir={SUITE}",
        f"--confcutdir={SUITE}",
    ]
    command += [
        "-o",
        "python_files=check_*.py",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        *options,
    ]
    files = [str(file) for file in sorted(SUITE.glob("check_*.py")) if file.name not in without]
    ran = run_program([*command, *files], timeout=300)
    output = ran.stdout + ran.stderr
    passed = re.search(r"(\d+) passed", output)
    return (int(passed[1]) if passed and ran.returncode == 0 else 0), output


def without_pydantic() -> tuple[str, ...]:
    """The files that need pydantic itself, where it is not installed."""
    return () if find_spec("pydantic") else ("check_models.py",)
