"""The generated reference pages are those the code of today would produce."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from amplifier import errors, events
from amplifier.contracts import COMMON_CLAUSES, CONTRACTS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "_generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def test_the_pages_on_disk_are_those_the_generator_writes(generator: ModuleType) -> None:
    stale = [
        path
        for path, text in generator.render().items()
        if not (DOCS / "reference" / path).is_file() or (DOCS / "reference" / path).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: python docs/_generate.py"


def test_no_generated_page_is_left_over_from_a_source_that_is_gone(generator: ModuleType) -> None:
    on_disk = {
        path.relative_to(DOCS / "reference").as_posix()
        for path in (DOCS / "reference").rglob("*.md")
        if generator.NOTICE in path.read_text(encoding="utf-8")
    }
    assert on_disk == set(generator.render())


def test_every_event_has_a_row(generator: ModuleType) -> None:
    rows = re.findall(r"^\| `([^`]+)`", generator.render()["events.md"], flags=re.MULTILINE)
    assert rows == list(events.CATALOGUE)


def test_every_error_has_a_heading_and_a_place_in_the_tree(generator: ModuleType) -> None:
    page = generator.render()["errors.md"]
    tree = page.partition("```text\n")[2].partition("```")[0]
    assert set(re.findall(r"^## `(\w+)`$", page, flags=re.MULTILINE)) == set(errors.__all__)
    assert set(errors.__all__) <= set(re.findall(r"\w+", tree))


def test_every_clause_has_a_row_on_exactly_one_page(generator: ModuleType) -> None:
    shown = [
        clause_id
        for path, page in generator.render().items()
        if path.startswith("contracts/")
        for clause_id in re.findall(r"^\| ([A-Z]\d+) \|", page, flags=re.MULTILINE)
    ]
    declared = [*COMMON_CLAUSES, *(clause for contract in CONTRACTS.values() for clause in contract.clauses)]
    assert sorted(shown) == sorted(clause.id for clause in declared)
