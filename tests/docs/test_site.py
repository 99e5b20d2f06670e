"""The manual builds without a warning, and every link inside it leads somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests._support.browser import open_tab
from tests._support.made_once import made_once
from tests._support.manual import DOCS, manual_pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # the build is one process, and all tests wait for it


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
        "--builder",
        "html",
    ]
    return subprocess.run(
        [*command, str(source), str(target)], capture_output=True, text=True, check=False
    )


class Page(HTMLParser):
    """The links and anchors of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def dead_links(site: Path) -> list[str]:
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (
                anchor and target in pages and anchor not in pages[target].anchors
            ):
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual."""

    def make(target: Path) -> None:
        finished = build(DOCS, target)
        assert (finished.returncode, finished.stderr) == (0, "")

    return made_once(tmp_path_factory, "site", make)


def test_manual_builds_without_warning(site: Path) -> None:
    assert "amplifier" in (site / "index.html").read_text(encoding="utf-8")


def test_option_hyphens_stay_hyphens(site: Path) -> None:
    assert "Everything but --static" in (site / "reference" / "commands.html").read_text(
        encoding="utf-8"
    )


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in manual_pages()}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_every_link_of_site_works(site: Path) -> None:
    assert dead_links(site) == []


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    fetched = [
        f"{path.relative_to(site)}: {link}"
        for path in site.rglob("*.html")
        for link in Page(path).links
        if urlsplit(link).netloc and link.endswith((".js", ".css", ".woff2", ".png", ".svg"))
    ]
    assert fetched == []


FOUND = """new Promise((resolve) => {
    const list = document.getElementById("search-results");
    const first = () => list.querySelector("li:first-child p.context");
    const look = () => first() && resolve(first().textContent);
    new MutationObserver(look).observe(list, {childList: true, subtree: true});
    look();
})"""


def test_offline_search_has_excerpts_and_order(site: Path) -> None:
    with open_tab() as tab:
        tab.open(f"{(site / 'search.html').as_uri()}?q=budget", width=1280)
        excerpt = " ".join(tab.evaluate(FOUND).split())
        assert excerpt.startswith("Set a budget An agent calls models")
        assert tab.problems == []


def test_every_page_is_in_navigation_once(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    navigation = page.partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    listed = re.findall(
        r'<li class="toctree-l(\d)[^"]*"><a class="reference internal" href="([^"]+)"', navigation
    )
    tops = [target for level, target in listed if level == "1"]
    assert tops == [
        f"{part}/index.html" for part in ("tutorial", "how-to", "explanation", "reference")
    ]
    targets = [target for _, target in listed]
    assert (
        len(targets) == len(set(targets)) == len(manual_pages()) - 1
    )  # the index itself is the title


PLANTED = {
    "index.md": "# Top\n\n[listed](listed.md) [out](../README.md) [code](../tool.py)\n",
    "listed.md": "# Listed\n\n[up](index.md#top)\n",
}


def planted(folder: Path, **more: str) -> Path:
    source = folder / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    shutil.copytree(DOCS / "_static", source / "_static")
    (folder / "README.md").write_text("# Outside\n")
    (folder / "tool.py").write_text("x = 1\n")
    for name, text in {**PLANTED, **{f"{name}.md": text for name, text in more.items()}}.items():
        (source / name).write_text(text)
    return source


def test_outside_link_keeps_text(tmp_path: Path) -> None:
    """A file can be downloaded."""
    finished = build(planted(tmp_path), tmp_path / "site")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert dead_links(tmp_path / "site") == []
    html = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "README" not in html
    assert ">out<" not in html
    assert "tool.py" in html


MISTAKES = {
    "unlisted": ("# An unlisted page\n", "document isn't included in any toctree"),
    "link": ("# Bad\n\n[gone](no-such.md)\n", "no-such.md"),
    "heading": ("# Bad\n\n[gone](listed.md#no-such-heading)\n", "no-such-heading"),
    "levels": ("# Bad\n\n### Too deep\n", "Non-consecutive header level increase"),
    "fence": ("# Bad\n\n```json\n{not json\n```\n", "Lexing literal_block"),
}


def test_every_planted_mistake_fails_build(tmp_path: Path) -> None:
    finished = build(
        planted(tmp_path, **{name: page for name, (page, _) in MISTAKES.items()}), tmp_path / "site"
    )
    assert finished.returncode != 0
    for name, (_, complaint) in MISTAKES.items():
        assert [
            line
            for line in finished.stderr.splitlines()
            if f"{name}.md" in line and complaint in line
        ], complaint
