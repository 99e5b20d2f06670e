"""The kit on a corpus of modules: every planted fault is found under its clause, no sound module gets a finding.

``corpus/<type>/faulty/<clause>_<what>`` (``.py`` or ``.patch``, see `corpus_modules`) breaks exactly that clause; ``corpus/<type>/sound/<what>`` breaks none;
``corpus/<type>/allowed/<clause>_<what>`` leaves out what that clause recommends, and conforms. Modules that the kit does not
judge correctly yet, or was not tried on, are in ``corpus/<type>/open/``; see `open_corpus`.
Each takes seconds, so `make test` checks one of each type, the slow tests a fixed sample, and ``WHOLE_CORPUS=1`` all: the faulty ones
with the checks of their clause and one seed, for a fault is there or it is not; the others with every check and three seeds, for a
false finding may depend on the cases that were drawn. A sample is examined on one backend each, by turns; all on both.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from amplifier.conformance import Report
from amplifier.conformance.checks.registry import all_clauses
from tests.conformance.corpus_modules import CorpusModule, corpus_modules, patched
from tests.conformance.modules import check

WHOLE = bool(os.environ.get("WHOLE_CORPUS"))
SEEDS = (0, 1, 2) if WHOLE else (0,)
BACKENDS = ("asyncio", "trio")
PART = 48
"""One in so many is examined when not all are."""


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
    for module in corpus_modules(kind):
        name = f"{module.type}/{module.name}"
        part = 2 if kind == "allowed" else PART  # there are few allowed ones
        is_sampled = zlib.crc32(f"{module.name}.py".encode()) % part == 0
        if WHOLE or name in ONE_OF_EACH_TYPE or is_sampled:
            marks: Any = [] if name in ONE_OF_EACH_TYPE else pytest.mark.slow
            parameters.append(pytest.param(module, id=name, marks=marks))
    return parameters


def examined(module: CorpusModule, folder: Path, seed: int, *only: str) -> Report:
    backends = BACKENDS if WHOLE else BACKENDS[zlib.crc32(module.name.encode()) % 2 :][:1]
    return check(
        module.path(folder), module_type=module.type, seed=seed, only=only, backends=backends
    )


def test_the_corpus_is_large_and_its_files_are_named_after_clauses():
    faulty, sound = corpus_modules("faulty"), corpus_modules("sound")
    assert len(faulty) >= 500
    assert len(sound) >= 100
    named = [
        *faulty,
        *corpus_modules("allowed"),
        *corpus_modules("open/faulty"),
        *corpus_modules("open/allowed"),
    ]
    assert {module.clause for module in named} <= set(all_clauses())


def test_every_patch_makes_valid_python_that_no_other_module_has():
    everything = [
        module for kind in ("faulty", "allowed", "sound") for module in corpus_modules(kind)
    ]
    patches = [module for module in everything if module.file.suffix == ".patch"]
    assert len(patches) >= 300
    assert len({module.source() for module in everything}) == len(everything)
    for module in patches:
        compile(module.source(), module.name, "exec")


def test_a_patch_whose_hunk_is_not_in_its_base_once_is_an_error():
    base = "a\nb\na\n"
    assert patched("--- base.py\n+++ new.py\n@@ @@\n a\n-b\n+c\n", base) == "a\nc\na\n"
    for places, hunk in ((0, "-z\n+c\n"), (2, "-a\n+c\n")):
        with pytest.raises(ValueError, match=rf"{places} places for a hunk of\n--- base\.py"):
            patched(f"--- base.py\n+++ new.py\n@@ @@\n{hunk}", base)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("module", modules("faulty"))
def test_a_planted_fault_is_found(module, tmp_path):
    report = examined(module, tmp_path, 0, module.clause)
    found = {finding.clause for finding in [*report.violations, *report.recommendations]}
    assert module.clause in found, str(report)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("module", modules("sound"))
def test_a_sound_module_gets_no_finding(module, tmp_path, seed):
    report = examined(module, tmp_path, seed)
    assert report.ok, str(report)
    assert report.recommendations == [], str(report)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("module", modules("allowed"))
def test_a_module_without_a_recommended_feature_conforms(module, tmp_path, seed):
    report = examined(module, tmp_path, seed)
    assert report.ok, str(report)
    assert {finding.clause for finding in report.recommendations} == {module.clause}, str(report)
