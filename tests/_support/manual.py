"""The pages of the manual: those written by hand, and those written from the code."""

from __future__ import annotations

from pathlib import Path

from docs._generate import PAGES, page_text
from tests._support.tree import ROOT, relative

DOCS = ROOT / "docs"


def manual_pages() -> list[Path]:
    """Every page, sorted, by where it is or will be."""
    return sorted([*committed_pages(), *(ROOT / path for path in PAGES)])


def committed_pages() -> list[Path]:
    """The pages written by hand, sorted."""
    return sorted(
        path for path in DOCS.rglob("*.md") if "_build" not in path.parts and not is_generated(path)
    )


def is_generated(path: Path) -> bool:
    """Whether a build writes the page; if it is on disk, it may be of an earlier version of the code."""
    return path.is_relative_to(ROOT) and relative(path) in PAGES


def read_page(path: Path) -> str:
    """The text of a page, of a generated one as the code makes it today."""
    return page_text(relative(path)) if is_generated(path) else path.read_text(encoding="utf-8")
