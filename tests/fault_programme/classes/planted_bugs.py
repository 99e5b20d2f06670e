"""Bugs are planted in a copy of the sources, one at a time, and the class that claims each must fail.

A class that passes with a bug in place would pass with any: this is the test of the tests. That the same chunks pass without a bug is
shown by the chunks named "without a bug"; the class of the holes runs each of its tests without one anyway.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests._support.tree import SOURCE

from ..launch import run_in_child
from ..parts import Chunk, FaultClass, Outcome, part_of
from . import (
    crash_images,
    foreign_calls,
    holes,
    hostile_inputs,
    kills,
    lifecycle,
    load,
    same_seed,
    signals,
)
from .bug_list import BUGS

SECONDS = 120.0
"""A chunk with a bug that runs or is idle for so long hangs, and the bug is caught."""

RUNNERS: dict[str, Callable[..., Outcome]] = {
    "foreign-calls": foreign_calls.run,
    "signals": signals.run,
    "lifecycle": lifecycle.run,
    "hostile-inputs": hostile_inputs.run,
    "kills": kills.run,
    "crash-images": crash_images.run,
    "load": load.run,
    "same-seed": same_seed.run,
    holes.NAME: holes.run,
}


def plant(folder: Path, file: str, old: str, new: str) -> None:
    """Copy the package into ``folder`` and change one place of it.

    Raises:
        ValueError: The text is not in the file exactly once.
    """
    text = (SOURCE / file).read_text()
    if text.count(old) != 1:
        raise ValueError(
            f"{old!r} is {text.count(old)} times in {file}; expected once. Change the planted bug"
        )
    shutil.copytree(
        SOURCE, folder / SOURCE.name
    )  # with what is compiled: it holds for files of the same time
    (folder / SOURCE.name / file).write_text(text.replace(old, new))


def _run_with(name: str, arguments: dict[str, Any], sources: Path | None) -> Outcome:
    runner = RUNNERS[name]
    fault_class = FaultClass(
        name=name,
        title=name,
        unit="",
        chunks=lambda share: [],
        run=runner,
        quick_share=1,
        seconds=SECONDS,
    )
    environment = dict(os.environ)
    if sources is not None:
        environment["PYTHONPATH"] = str(sources)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return run_in_child(fault_class, Chunk(name, arguments), environment=environment)


def run(
    bug: int | None = None, without: str | None = None, arguments: dict[str, Any] | None = None
) -> Outcome:
    """Plant one bug, or run a chunk without one."""
    outcome = Outcome()
    if bug is None:
        found = _run_with(str(without), arguments or {}, None)
        for problem in found.failures:
            outcome.fail(f"without a bug: {problem}")
        return outcome
    planted = BUGS[bug]
    with tempfile.TemporaryDirectory() as name:
        plant(Path(name), planted.file, planted.old, planted.new)
        found = _run_with(planted.fault_class, planted.arguments, Path(name))
    outcome.cases = 1
    if not found.failures and found.figures.get("tests that were skipped here"):
        outcome.count("bugs in what this machine does not have")
        return outcome
    if not found.failures:
        outcome.fail(f"{planted.name} ({planted.file}): {planted.fault_class} did not notice")
    outcome.count(f"caught by {planted.fault_class}", bool(found.failures))
    return outcome


def chunks(share: float) -> list[Chunk]:
    """One for every bug, spread over the list, and one for each setting without a bug."""
    number = part_of(len(BUGS), share)
    chosen = [round(place * (len(BUGS) - 1) / max(1, number - 1)) for place in range(number)]
    settings: dict[str, Chunk] = {}
    for bug in chosen:
        planted = BUGS[bug]
        if planted.fault_class == holes.NAME:
            continue
        name = f"without a bug: {planted.fault_class} {planted.arguments}"
        settings[name] = Chunk(
            name, {"without": planted.fault_class, "arguments": planted.arguments}
        )
    bugs = [Chunk(BUGS[bug].name, {"bug": bug}) for bug in chosen]
    return [*settings.values(), *bugs]
