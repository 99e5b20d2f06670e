"""The kit on a corpus of modules: every planted fault is found under its clause, no sound module gets a finding.

``corpus/<type>/faulty/<clause>_<what>.py`` breaks exactly that clause; ``corpus/<type>/sound/<what>.py`` breaks none;
``corpus/<type>/allowed/<clause>_<what>.py`` leaves out what that clause recommends, and conforms. Modules that the kit does not
judge correctly yet, or was not tried on, are in ``corpus/<type>/open/``; see `open_corpus`.
Each takes seconds, so `make test` checks one of each type, `make test-slow` a fixed sample, and ``make corpus`` all: the faulty ones
with the checks of their clause and one seed, for a fault is there or it is not; the others with every check and three seeds, for a
false finding may depend on the cases that were drawn.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.conformance import Report, check_module
from amplifier.conformance.harness.check_registry import all_clauses

CORPUS = Path(__file__).parent / "corpus"
WHOLE = bool(os.environ.get("WHOLE_CORPUS"))
SEEDS = (0, 1, 2) if WHOLE else (0,)
PART = 48
"""One in so many is examined when not all are."""


def type_of(file: Path) -> str:
    return file.parent.parent.name


ONE_OF_EACH_TYPE = {
    "context/C1_sync_clear",
    "hook/H9_no_cleanup_for_ready_handlers",
    "orchestrator/O2_wrong_place",
    "provider/P10_new_ids",
    "resolver/R9_asks_git",
    "tool/T4_mounted_at_tool",
}
"""What `make test` checks; test_builtins.py has sound modules."""


def modules(kind: str) -> list[Any]:
    """Parameters for a sample of the modules of a kind."""
    parameters = []
    for file in sorted(CORPUS.glob(f"*/{kind}/*.py")):
        name = f"{type_of(file)}/{file.stem}"
        part = 2 if kind == "allowed" else PART  # there are few allowed ones
        is_sampled = zlib.crc32(file.name.encode()) % part == 0
        if WHOLE or name in ONE_OF_EACH_TYPE or is_sampled:
            marks: Any = [] if name in ONE_OF_EACH_TYPE else pytest.mark.slow
            parameters.append(pytest.param(file, id=name, marks=marks))
    return parameters


def examined(file: Path, seed: int, *only: str) -> Report:
    async def run() -> Report:
        return await check_module(file, module_type=type_of(file), seed=seed, only=only)

    return anyio.run(run)


def test_the_corpus_is_large_and_its_files_are_named_after_clauses():
    faulty, sound = sorted(CORPUS.glob("*/faulty/*.py")), sorted(CORPUS.glob("*/sound/*.py"))
    assert len(faulty) >= 500
    assert len(sound) >= 100
    named = [
        *faulty,
        *CORPUS.glob("*/allowed/*.py"),
        *CORPUS.glob("*/open/faulty/*.py"),
        *CORPUS.glob("*/open/allowed/*.py"),
    ]
    assert {file.stem.partition("_")[0] for file in named} <= set(all_clauses())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", modules("faulty"))
def test_a_planted_fault_is_found(file):
    clause = file.stem.partition("_")[0]
    report = examined(file, 0, clause)
    found = {finding.clause for finding in [*report.violations, *report.recommendations]}
    assert clause in found, str(report)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("file", modules("sound"))
def test_a_sound_module_gets_no_finding(file, seed):
    report = examined(file, seed)
    assert report.ok, str(report)
    assert report.recommendations == [], str(report)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("file", modules("allowed"))
def test_a_module_without_a_recommended_feature_conforms(file, seed):
    report = examined(file, seed)
    assert report.ok, str(report)
    assert {finding.clause for finding in report.recommendations} == {file.stem.partition("_")[0]}, str(report)
