"""The table of what each protocol honours: every row names tests that exist, and every official client shows some row."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

from docs._generate._pages import page_text

FOLDER = Path(__file__).parent
TABLES: list[dict[str, Any]] = tomllib.loads((FOLDER / "protocols.toml").read_text())["table"]
ROWS = [(table, row) for table in TABLES for row in table["rows"]]


def names_in(path: Path) -> set[str]:
    found = ast.parse(path.read_text()).body
    return {each.name for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_rows_name_existing_tests():
    for table, row in ROWS:
        assert len(row["cells"]) == len(table["columns"]), row
        assert row["tests"], row
        for test in row["tests"]:
            file, _, name = test.partition("::")
            assert name in names_in(FOLDER / file), test


def test_refusals_use_documented_words():
    source = "".join(
        path.read_text()
        for path in (FOLDER.parents[1] / "src" / "amplifier" / "servers").rglob("*.py")
    )
    for _, row in ROWS:
        for cell in row["cells"][1:]:
            if cell.startswith("refused: `"):
                assert cell.split("`")[1] in source, cell


def test_every_official_client_shows_row():
    clients = {path.name for path in FOLDER.rglob("test_*client.py")} | {
        "test_openai_python.py",
        "test_openai_node.py",
    }
    named = {Path(test.partition("::")[0]).name for _, row in ROWS for test in row["tests"]}
    assert clients - named == set()


def test_page_has_every_row():
    page = page_text("docs/reference/protocols.md")
    for _, row in ROWS:
        assert row["cells"][0] in page
