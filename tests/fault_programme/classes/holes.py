"""Holes that attackers found once: each is held closed by tests of the suite, which run here against a copy with the hole open again."""

from __future__ import annotations

import os
import re
import sys

from tests._support.programs import run_program
from tests._support.tree import ROOT

from ..parts import Chunk, Outcome, part_of
from .bug_list import BUGS

NAME = "holes"
_TAIL = 800


def run(test: str, match: str) -> Outcome:
    """Run the tests of a file whose names match, in a process of its own."""
    outcome = Outcome()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-m",
        "",
    ]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    finished = run_program(
        [*command, f"tests/{test}", "-k", match], cwd=ROOT, env=environment, timeout=3600
    )
    if finished.returncode != 0:
        outcome.fail(f"{test}, {match}: {finished.stdout[-_TAIL:]}")
    passed = re.search(r"(\d+) passed", finished.stdout)
    outcome.cases = int(passed[1]) if passed else 0
    outcome.count("tests that were skipped here", 0 if passed or outcome.failures else 1)
    return outcome


def chunks(share: float) -> list[Chunk]:
    """One for each test of a hole."""
    wanted = {
        bug.arguments["test"] + " " + bug.arguments["match"]: bug.arguments
        for bug in BUGS
        if bug.fault_class == NAME
    }
    return [
        Chunk(name, arguments)
        for name, arguments in list(wanted.items())[: part_of(len(wanted), share)]
    ]
