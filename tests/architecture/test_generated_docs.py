"""The generated files, pages of the reference and the schema of mount plans, are those the code of today would produce."""

from __future__ import annotations

import re

import pytest

from amplifier import errors, events
from amplifier.contracts import COMMON_CLAUSES, CONTRACTS
from docs._generate import NOTICE, ROOT, render
from docs._generate._api import _KERNELS_OWN, API_PAGES
from tests._support.tree import load, public_module_paths

REFERENCE = "docs/reference"


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return render()


def test_the_files_on_disk_are_those_the_generator_writes(generated: dict[str, str]) -> None:
    stale = [
        path
        for path, text in generated.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: make docs"


def test_no_generated_page_is_left_over_from_a_source_that_is_gone(generated: dict[str, str]) -> None:
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if NOTICE in path.read_text(encoding="utf-8")
    }
    assert on_disk == {path for path in generated if path.endswith(".md")}


def test_every_event_has_a_row(generated: dict[str, str]) -> None:
    rows = re.findall(r"^\| `([^`]+)`", generated[f"{REFERENCE}/events.md"], flags=re.MULTILINE)
    assert rows == list(events.CATALOGUE)


def test_every_error_has_a_heading_and_a_place_in_the_tree(generated: dict[str, str]) -> None:
    page = generated[f"{REFERENCE}/errors.md"]
    tree = page.partition("```text\n")[2].partition("```")[0]
    assert set(re.findall(r"^## `(\w+)`$", page, flags=re.MULTILINE)) == set(errors.__all__)
    assert set(errors.__all__) <= set(re.findall(r"\w+", tree))


def test_every_clause_has_a_row_on_exactly_one_page(generated: dict[str, str]) -> None:
    shown = [
        clause_id
        for path, page in generated.items()
        if path.startswith(f"{REFERENCE}/contracts/")
        for clause_id in re.findall(r"^\| ([A-Z]\d+) \|", page, flags=re.MULTILINE)
    ]
    declared = [*COMMON_CLAUSES, *(clause for contract in CONTRACTS.values() for clause in contract.clauses)]
    assert sorted(shown) == sorted(clause.id for clause in declared)


def test_every_public_module_has_a_page_or_is_described_elsewhere() -> None:
    elsewhere = {
        "amplifier.cli",  # commands.md
        "amplifier.errors",  # errors.md
        "amplifier.events",  # events.md
        "amplifier.compat.pytest",  # compat.md
        "amplifier.pytest_plugin",  # how-to/prove-a-module.md
    }
    modules = {name for name in public_module_paths() if not name.startswith("amplifier.modules")}
    assert modules == set(API_PAGES) | elsewhere


def test_every_public_name_has_a_heading_or_a_line_on_the_page_of_its_module(generated: dict[str, str]) -> None:
    for module, file in API_PAGES.items():
        page = generated[f"{REFERENCE}/api/{file}.md"]
        shown = re.findall(r"^(?:## `|\| \[`|- `)(\w+)", page, flags=re.MULTILINE)
        assert set(load(module).__all__) <= set(shown), module


def test_members_of_bases_that_no_page_describes_are_on_the_page_of_the_class(generated: dict[str, str]) -> None:
    page = generated[f"{REFERENCE}/api/kernel.md"]
    session = page.partition("## `AmplifierSession`")[2].partition("\n## ")[0]
    for name in ("async execute", "stream", "async resume_turn", "stream_resumed_turn"):
        assert f"\n- `{name}(" in session
    coordinator = page.partition("## `ModuleCoordinator`")[2].partition("\n## ")[0]
    assert "\n- `mount(" in coordinator
    assert "mounts" not in coordinator  # only declared there, for type checkers
    stream = page.partition("## `TurnStream`")[2].partition("\n## ")[0]
    assert "\n- `result`: " in stream
    assert "TurnStream(" not in stream


def test_every_command_has_its_options_on_the_page(generated: dict[str, str]) -> None:
    page = generated[f"{REFERENCE}/commands.md"]
    run = page.partition("## `amplifier run`")[2].partition("## `")[0]
    assert "| `-y`, `--yes` |" in run
    assert "## `amplifier plan check`" in page
    assert "--help" not in run


@pytest.mark.parametrize("name", _KERNELS_OWN)
def test_what_is_left_out_as_the_kernels_own_exists(name: str) -> None:
    assert _KERNELS_OWN[name] <= set(vars(getattr(load("amplifier"), name)))
