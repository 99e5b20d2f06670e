"""Importing for the first time, and the size of what is installed for it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

import amplifier
from benchmarks.duel import ROUNDS

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


def taken_by(*words: str) -> float:
    """Processor seconds of a fresh interpreter with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-I", *words], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_cold_import(board):
    """What importing a session adds to an empty interpreter; compiled files are there, as after an installation."""
    statements = {
        "empty": "pass",
        "ours": "from amplifier import AmplifierSession",
        "theirs": "from amplifier_core import AmplifierSession",
    }
    for statement in statements.values():
        taken_by("-c", statement)
    rounds = [
        {name: taken_by("-c", code) for name, code in statements.items()} for _ in range(ROUNDS)
    ]
    added = {
        who: [max(taken[who] - taken["empty"], 1e-6) for taken in rounds]
        for who in ("ours", "theirs")
    }
    ratios = [theirs / ours for ours, theirs in zip(added["ours"], added["theirs"], strict=True)]
    figures = {who: f"{statistics.median(values) * 1e3:.0f} ms" for who, values in added.items()}
    board.spread("cold import of a session", ratios, **figures)


def test_size_of_the_base_install(board):
    """Everything that ``pip install`` without extras puts on the disk, compiled files left out as in the wheels."""
    ours = size_of_ours() + sum(
        size_of(name) for name in requirements_of("amplifier") - {"amplifier"}
    )
    theirs = sum(size_of(name) for name in requirements_of("amplifier-core"))
    note = f"{size_of_ours():.1f} MiB of it is the project"
    board.figures("size of the base install", theirs, ours, "MiB", note=note)


def requirements_of(name: str) -> set[str]:
    """A distribution and everything it needs here, without extras."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        found = waiting.pop()
        if found in needed:
            continue
        needed.add(found)
        waiting += direct_requirements_of(found)
    return needed


def direct_requirements_of(name: str) -> Iterator[str]:
    for line in importlib.metadata.requires(name) or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield re.sub(r"[-_.]+", "-", requirement.name).lower()


def size_of(name: str) -> float:
    """Mebibytes of one installed distribution."""
    files = importlib.metadata.files(name) or []
    paths = (Path(str(file.locate())) for file in files if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def size_of_ours() -> float:
    """The same of this project, which is installed by reference: its package, and the README in its metadata."""
    folder = Path(amplifier.__file__).parent
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sum(path.stat().st_size for path in [*files, Path("README.md")]) / 2**20
