"""The explanations name existing files and correct figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amplifier.contracts import COMMON_CLAUSES, CONTRACTS
from tests._support.tree import FORMER_PLACES, ROOT, SOURCE
from tests.conformance.corpus_modules import corpus_modules
from tests.faults.fault_list import FAULTS
from tests.faults.faults_published import HOLDS, PUBLISHED

EXPLANATION = ROOT / "docs" / "explanation"
PAGES = sorted(EXPLANATION.glob("*.md"))

_CODE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"[\w./-]+(?:\.(?:py|md|toml|yml|svg)|/)")


def named_files(text: str) -> list[str]:
    """What a page names as a file or folder, outside of its code blocks."""
    return [name for name in _CODE.findall(_FENCE.sub("", text)) if _PATH.fullmatch(name)]


def exists(name: str) -> bool:
    """Whether there is such a file: from the top, from the sources, or, for a bare name, in any package."""
    if any((base / name).exists() for base in (ROOT, SOURCE)):
        return True
    return "/" not in name.rstrip("/") and any(True for _ in SOURCE.rglob(name.rstrip("/")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_by_page_exist(page: Path):
    assert [
        name for name in named_files(page.read_text(encoding="utf-8")) if not exists(name)
    ] == []


def test_tour_names_every_package():
    named = named_files((EXPLANATION / "design.md").read_text(encoding="utf-8"))
    packages = {
        path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    mentioned = {name.split("/")[0] for name in named}
    former = {name.partition(".")[2] for name in FORMER_PLACES}
    assert sorted(packages - mentioned - former) == []


def test_tour_has_every_kernel_file():
    named = set(named_files((EXPLANATION / "design.md").read_text(encoding="utf-8")))
    files = {path.name for path in (SOURCE / "kernel").rglob("*.py") if path.name != "__init__.py"}
    assert sorted(files - {name.rpartition("/")[2] for name in named}) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`kernel/session/turn.py` and `a.b`", ["kernel/session/turn.py"]),
        ("`tests/faults` `models/`", ["models/"]),
        ("```python\n`x.py`\n```\n`y.py`", ["y.py"]),
    ],
)
def test_named_files_are_found_outside_code_blocks(text, found):
    assert named_files(text) == found


def test_planted_name_is_detected():
    assert not exists("kernel/_no_such_file.py")
    assert not exists("_no_such_file.py")
    assert exists("spec.py")


def test_countable_figures_are_correct():
    text = " ".join((EXPLANATION / "how-it-is-tested.md").read_text(encoding="utf-8").split())
    clauses = len(COMMON_CLAUSES) + sum(len(contract.clauses) for contract in CONTRACTS.values())
    held = sum(outcome == HOLDS for outcome in PUBLISHED.values())
    assert f"| clauses of the contracts | {clauses} |" in text
    assert f"{len(FAULTS)} of {len(FAULTS)} on asyncio" in text
    assert f"It handled {held} correctly;" in text
    assert f"{len(FAULTS) - held} it hung" in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("faulty", "modules with a planted fault"),
        ("sound", "correct modules that must get no finding"),
    ],
)
def test_corpus_is_as_large_as_stated(kind, words):
    text = (EXPLANATION / "how-it-is-tested.md").read_text(encoding="utf-8")
    figure = re.search(rf"{words} \| (\d+) \|", text)
    assert figure is not None
    there = len(corpus_modules(kind))
    assert there >= int(figure[1])
