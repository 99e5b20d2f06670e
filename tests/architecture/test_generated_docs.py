"""The pages that are written from the code are current and have what readers look for, and so are the shipped JSON Schemas."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amplifier import errors, events
from amplifier.contracts import COMMON_CLAUSES, CONTRACTS
from docs._generate import PAGES, ROOT, SCHEMAS, _pages, page_text, write_pages
from docs._generate._api import API_PAGES
from docs._generate._markdown import NOTICE
from tests._support.tree import load, public_module_paths

REFERENCE = "docs/reference"


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return {path: page_text(path) for path in PAGES}


@pytest.mark.parametrize("path", SCHEMAS)
def test_shipped_schema_matches_code(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == SCHEMAS[path](), "run: make docs"


@pytest.mark.parametrize("path", PAGES)
def test_generated_page_is_current(path: str, generated: dict[str, str]) -> None:
    assert (ROOT / path).is_file(), "run: python -m docs._generate"
    assert (ROOT / path).read_text(encoding="utf-8") == generated[path], (
        "run: python -m docs._generate"
    )


def test_pages_of_removed_sources_are_gone() -> None:
    on_disk = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in (ROOT / REFERENCE).rglob("*.md")
    }
    assert [path for path, text in on_disk.items() if NOTICE in text and path not in PAGES] == []


def test_build_writes_current_and_removes_stale_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generated: dict[str, str]
) -> None:
    monkeypatch.setattr(_pages, "ROOT", tmp_path)
    written_by_hand, left_over = (
        tmp_path / REFERENCE / "cli.md",
        tmp_path / REFERENCE / "api" / "gone.md",
    )
    left_over.parent.mkdir(parents=True)
    written_by_hand.write_text("# The command line\n")
    left_over.write_text(f"# Gone\n\n{NOTICE}\n")
    (tmp_path / REFERENCE / "errors.md").write_text(f"# Old\n\n{NOTICE}\n")
    write_pages()
    on_disk = {
        path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.md")
    }
    assert on_disk == {**generated, f"{REFERENCE}/cli.md": "# The command line\n"}


def test_page_has_title_and_origin(generated: dict[str, str]) -> None:
    for path, text in generated.items():
        title, notice, content = text.split("\n\n", 2)
        assert (title[:2], notice) == ("# ", NOTICE), path
        assert content.strip(), path


def test_only_plan_page_has_runnable_code(
    generated: dict[str, str],
) -> None:
    block = re.compile(r"^```(?:python|json|yaml|toml)$", re.MULTILINE)
    assert [path for path, text in generated.items() if block.search(text)] == [
        f"{REFERENCE}/mount-plan.md"
    ]
    assert (
        "```python" not in generated[f"{REFERENCE}/mount-plan.md"]
    )  # tests/docs/test_plan_blocks.py reads the others


def test_every_event_has_row(generated: dict[str, str]) -> None:
    rows = re.findall(r"^\| `([^`]+)`", generated[f"{REFERENCE}/events.md"], flags=re.MULTILINE)
    assert rows == list(events.CATALOGUE)


def test_every_error_has_heading_and_place(generated: dict[str, str]) -> None:
    page = generated[f"{REFERENCE}/errors.md"]
    tree = page.partition("```text\n")[2].partition("```")[0]
    assert set(re.findall(r"^## `(\w+)`$", page, flags=re.MULTILINE)) == set(errors.__all__)
    assert set(errors.__all__) <= set(re.findall(r"\w+", tree))


def test_every_clause_has_one_row(generated: dict[str, str]) -> None:
    shown = [
        clause_id
        for path, page in generated.items()
        if path.startswith(f"{REFERENCE}/contracts/")
        for clause_id in re.findall(r"^\| ([A-Z]\d+) \|", page, flags=re.MULTILINE)
    ]
    declared = [
        *COMMON_CLAUSES,
        *(clause for contract in CONTRACTS.values() for clause in contract.clauses),
    ]
    assert sorted(shown) == sorted(clause.id for clause in declared)


def test_every_public_module_is_described() -> None:
    elsewhere = {
        "amplifier.cli",  # commands.md
        "amplifier.errors",  # errors.md
        "amplifier.events",  # events.md
        "amplifier.compat.pytest",  # compat.md
        "amplifier.pytest_plugin",  # how-to/prove-a-module.md
    }
    modules = {name for name in public_module_paths() if not name.startswith("amplifier.modules")}
    assert modules == set(API_PAGES) | elsewhere


def test_every_public_name_is_on_its_page(
    generated: dict[str, str],
) -> None:
    for module, file in API_PAGES.items():
        page = generated[f"{REFERENCE}/api/{file}.md"]
        shown = re.findall(r"^(?:## `|\| \[`|- `)(\w+)", page, flags=re.MULTILINE)
        assert set(load(module).__all__) <= set(shown), module


def test_undocumented_base_members_are_on_page(
    generated: dict[str, str],
) -> None:
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


def test_every_command_page_has_options(generated: dict[str, str]) -> None:
    page = generated[f"{REFERENCE}/commands.md"]
    run = page.partition("## `amplifier run`")[2].partition("## `")[0]
    assert "| `-y`, `--yes` |" in run
    assert "## `amplifier plan check`" in page
    assert "--help" not in run
