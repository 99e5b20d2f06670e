"""The kit on a corpus of modules: every planted fault is found under its clause, no sound module gets a finding.

``corpus/<type>/faulty/<clause>_<what>.py`` breaks exactly that clause; ``corpus/<type>/sound/<what>.py`` breaks none. Each takes
seconds, so a fixed part of them is examined here and the whole collection, with three seeds, by ``make corpus``.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import anyio
import pytest

from amplifier.conformance import Report, check_module
from amplifier.conformance.harness.check_registry import all_clauses

CORPUS = Path(__file__).parent / "corpus"
WHOLE = bool(os.environ.get("WHOLE_CORPUS"))
SEEDS = (0, 1, 2) if WHOLE else (0,)
PART = 8
"""One in so many is examined when not all are."""


def modules(kind: str) -> list[Path]:
    found = sorted(CORPUS.glob(f"*/{kind}/*.py"))
    return [file for file in found if WHOLE or zlib.crc32(file.name.encode()) % PART == 0]


def name_of(file: Path) -> str:
    return f"{file.parent.parent.name}/{file.stem}"


def examined(file: Path, seed: int, *only: str) -> Report:
    async def run() -> Report:
        return await check_module(file, module_type=file.parent.parent.name, seed=seed, only=only)

    return anyio.run(run)


def test_the_corpus_is_large_and_its_files_are_named_after_clauses():
    faulty, sound = sorted(CORPUS.glob("*/faulty/*.py")), sorted(CORPUS.glob("*/sound/*.py"))
    assert len(faulty) >= 300
    assert len(sound) >= 40
    assert {file.stem.partition("_")[0] for file in faulty} <= set(all_clauses())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("file", modules("faulty"), ids=name_of)
def test_a_planted_fault_is_found(file, seed):
    clause = file.stem.partition("_")[0]
    report = examined(file, seed, *([] if WHOLE else [clause]))
    found = {finding.clause for finding in [*report.violations, *report.recommendations]}
    assert clause in found, str(report)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("file", modules("sound"), ids=name_of)
def test_a_sound_module_gets_no_finding(file, seed):
    report = examined(file, seed)
    assert report.ok, str(report)
    assert report.recommendations == [], str(report)
