"""The format of CHANGELOG.md: that of keepachangelog.com, versions from the newest down, full sentences in lists."""

from __future__ import annotations

import re

import pytest

import amplifier
from tests._support.tree import ROOT

HEADING = re.compile(r"## \[(\d+)\.(\d+)\.(\d+)\] - (Unreleased|\d{4}-\d{2}-\d{2})")
UNRELEASED = "## [Unreleased]"
GROUP = re.compile(r"^### (\w[\w ]*)$", re.MULTILINE)
GROUPS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def problems(text: str) -> list[str]:
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = [] if head.startswith("# Changelog\n") else ["it does not begin with '# Changelog'"]
    versions = []
    for number, section in enumerate(sections):
        title, _, body = section.partition("\n")
        heading = HEADING.fullmatch(title)
        if title == UNRELEASED and number == 0:
            found += [
                f"{name!r} is not a group of changes"
                for name in GROUP.findall(body)
                if name not in GROUPS
            ]
        elif heading is None:
            found.append(f"{title!r} is not '## [Unreleased]' on top, or '## [1.2.3] - 2026-01-31'")
            continue
        else:
            versions.append(tuple(int(part) for part in heading.groups()[:3]))
            if heading[4] == "Unreleased" and len(versions) > 1:
                found.append(f"{title!r} is not the newest and still unreleased")
        for group in re.split(r"^### .*$", body, flags=re.MULTILINE):
            entries = re.split(r"^- ", group.strip() + "\n", flags=re.MULTILINE)
            if entries[0].strip():
                found.append(f"{title!r} has text outside of its list")
            found += [
                f"no full stop: {entry.strip()!r:.60}"
                for entry in entries[1:]
                if not entry.strip().endswith(".")
            ]
    if versions != sorted(versions, reverse=True):
        found.append("the versions do not go from the newest down")
    return found


def test_changelog_has_required_format() -> None:
    assert problems((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


def test_package_version_is_newest_in_changelog() -> None:
    newest = HEADING.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert newest is not None
    assert ".".join(newest.groups()[:3]) == amplifier.__version__


GOOD = (
    "# Changelog\n\nNewest first.\n\n## [Unreleased]\n\n### Added\n\n- New.\n\n## [0.2.0] - Unreleased\n\n- One.\n- Two\n  lines.\n\n"
    "### Hooks\n\n- Three.\n\n## [0.1.0] - 2026-01-31\n\n- Old.\n"
)


def test_valid_changelog_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("# Changelog", "# Changes"),
        ("## [0.2.0] - Unreleased", "## [0.2.0]"),
        ("[0.2.0]", "[0.0.9]"),
        ("2026-01-31", "31.1.2026"),
        ("- 2026-01-31", "- Unreleased"),
        ("### Added", "### News"),
        ("- Old.", "- Old"),
        ("- Three.", "- Three"),
        ("- Three.", "Three."),
        ("- Old.", "Old."),
    ],
)
def test_planted_mistake_is_detected(good: str, bad: str) -> None:
    assert len(problems(GOOD.replace(good, bad))) == 1
