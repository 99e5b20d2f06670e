"""What the pages name exists: files of the repository, targets of the Makefile, commands of the command line."""

from __future__ import annotations

import re

import click
import pytest

from amplifier.cli.commands.app import app
from tests._support.manual import manual_pages, read_page
from tests._support.tree import ROOT, relative

PAGES = sorted([*ROOT.glob("*.md"), *manual_pages()])
TARGETS = re.findall(
    r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
)[0].split()

_CODE = re.compile(r"`([^`\n]+)`")
_MADE = ("docs/_build/", "benchmarks/results/")
"""Folders that a make target writes and that are not committed."""
_PATH = re.compile(r"(?:src|tests|docs|examples|benchmarks|\.ci)(?:/\w[\w.-]*)+/?")
_MAKE = re.compile(r"\bmake ((?:-\w+ )*)([a-z][\w.-]*)")
_COMMAND = re.compile(r"(?:`|^\$ )amplifier ((?:[a-z]+(?:-[a-z]+)* ?)+)", re.MULTILINE)


def missing_files(text: str) -> list[str]:
    named = {path for code in _CODE.findall(text) for path in _PATH.findall(code) if path == code}
    return sorted(
        path for path in named if not path.startswith(_MADE) and not (ROOT / path).exists()
    )


def missing_targets(text: str) -> list[str]:
    code = "\n".join([*_CODE.findall(text), *re.findall(r"^\$ make .*$", text, re.MULTILINE)])
    return sorted({target for _, target in _MAKE.findall(code) if target not in TARGETS})


def missing_commands(text: str) -> list[str]:
    missing = []
    for found in _COMMAND.findall(text):
        group: click.Command | None = app
        for word in found.split():
            if not isinstance(group, click.Group):
                break  # what follows are arguments
            group = group.get_command(click.Context(group), word)
            if group is None:
                missing.append(f"amplifier {found.strip()}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_mentioned_things_exist(page):
    text = read_page(page)
    if page.parent.name != "tutorial":  # their readers have a project of their own
        assert missing_files(text) == []
    assert missing_targets(text) == []
    assert missing_commands(text) == []


def test_planted_mentions_of_missing_things_are_detected():
    assert missing_files("see `tests/no/such.py` and `src/amplifier/errors.py`") == [
        "tests/no/such.py"
    ]
    assert missing_targets("`make tset` or `make test`\n\n$ make no-such-thing") == [
        "no-such-thing",
        "tset",
    ]
    assert missing_commands(
        "`amplifier plan chek x` and\n$ amplifier rum hello\n$ amplifier run hello"
    ) == [
        "amplifier plan chek x",
        "amplifier rum hello",
    ]
