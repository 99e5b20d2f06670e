"""The list of changes keeps one form: versions from the newest down, dated or unreleased, and sentences in lists."""

from __future__ import annotations

import re

import pytest

import amplifier
from tests._support.tree import ROOT

HEADING = re.compile(r"## (\d+)\.(\d+)\.(\d+) \((unreleased|\d{4}-\d{2}-\d{2})\)")


def problems(text: str) -> list[str]:
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = [] if head.startswith("# Changes\n") else ["it does not begin with '# Changes'"]
    versions = []
    for number, section in enumerate(sections):
        title, _, body = section.partition("\n")
        heading = HEADING.fullmatch(title)
        if heading is None:
            found.append(f"{title!r} is not '## 1.2.3 (2026-01-31)' or '## 1.2.3 (unreleased)'")
            continue
        versions.append(tuple(int(part) for part in heading.groups()[:3]))
        if heading[4] == "unreleased" and number > 0:
            found.append(f"{title!r} is not the newest and still unreleased")
        entries = re.split(r"^- ", body.strip() + "\n", flags=re.MULTILINE)
        if entries[0].strip():
            found.append(f"{title!r} has text outside of its list")
        found += [f"no full stop: {entry.strip()!r:.60}" for entry in entries[1:] if not entry.strip().endswith(".")]
    if versions != sorted(versions, reverse=True):
        found.append("the versions do not go from the newest down")
    return found


def test_the_list_of_changes_keeps_its_form() -> None:
    assert problems((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


def test_the_version_of_the_package_is_the_newest_in_the_list() -> None:
    newest = HEADING.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert newest is not None
    assert ".".join(newest.groups()[:3]) == amplifier.__version__


GOOD = "# Changes\n\nNewest first.\n\n## 0.2.0 (unreleased)\n\n- One.\n- Two\n  lines.\n\n## 0.1.0 (2026-01-31)\n\n- Old.\n"


def test_a_good_list_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("# Changes", "# Changelog"),
        ("## 0.2.0 (unreleased)", "## 0.2.0"),
        ("0.2.0", "0.0.9"),
        ("2026-01-31", "31.1.2026"),
        ("(2026-01-31)", "(unreleased)"),
        ("- Old.", "- Old"),
        ("- Old.", "Old."),
    ],
)
def test_a_planted_mistake_is_seen(good: str, bad: str) -> None:
    assert len(problems(GOOD.replace(good, bad))) == 1
