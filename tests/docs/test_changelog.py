"""The format of CHANGELOG.md: versions from the newest down, dated or unreleased, sentences in lists, groups with headings."""

from __future__ import annotations

import re

import pytest

import amplifier
from tests._support.tree import ROOT

HEADING = re.compile(r"## (\d+)\.(\d+)\.(\d+) \((unreleased|\d{4}-\d{2}-\d{2})\)")

GROUP = re.compile(r"^### \w[\w ]*$", re.MULTILINE)


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
        for group in GROUP.split(body):
            entries = re.split(r"^- ", group.strip() + "\n", flags=re.MULTILINE)
            if entries[0].strip():
                found.append(f"{title!r} has text outside of its list")
            found += [
                f"no full stop: {entry.strip()!r:.60}" for entry in entries[1:] if not entry.strip().endswith(".")
            ]
    if versions != sorted(versions, reverse=True):
        found.append("the versions do not go from the newest down")
    return found


def test_changelog_has_the_required_format() -> None:
    assert problems((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


def test_package_version_is_the_newest_in_the_changelog() -> None:
    newest = HEADING.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert newest is not None
    assert ".".join(newest.groups()[:3]) == amplifier.__version__


GOOD = "# Changes\n\nNewest first.\n\n## 0.2.0 (unreleased)\n\n- One.\n- Two\n  lines.\n\n### Hooks\n\n- Three.\n\n## 0.1.0 (2026-01-31)\n\n- Old.\n"


def test_valid_changelog_has_no_problems() -> None:
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
        ("- Three.", "- Three"),
        ("- Three.", "Three."),
        ("- Old.", "Old."),
    ],
)
def test_planted_mistake_is_detected(good: str, bad: str) -> None:
    assert len(problems(GOOD.replace(good, bad))) == 1
