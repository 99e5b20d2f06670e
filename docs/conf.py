"""How Sphinx builds the manual: MyST reads the pages, furo shows them. ``make docs`` runs it; see CONTRIBUTING.md.

Pages that come from the code are written before anything is read. The others are plain Markdown, to be read on a forge as well. Two things that plain Markdown cannot express are added while
reading: an index page's links to other pages are its table of contents, so that an unlisted page is a warning; and a
link to a page or folder outside of the manual keeps its text only, because there is nothing to point to.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sphinx.application import Sphinx

project = "amplifier"
author = "The amplifier contributors"
release = version = installed_version("amplifier")

extensions = ["myst_parser"]
exclude_patterns = ["_build", "_generate"]
nitpicky = True  # every reference has to lead somewhere
smartquotes = False  # it takes the two hyphens of an option for a dash

myst_heading_anchors = 4  # the anchors of a forge's Markdown view, so that a link works in both

html_theme = "furo"
html_title = f"amplifier {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False

_DOCS = Path(__file__).parent
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_ARTICLE = re.compile(r'<article role="main".*?</article>', re.DOTALL)
_LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s:]+)\)")


def setup(app: Sphinx) -> None:
    """Write the pages that come from the code, and let `read_page` process every page first."""
    app.connect("builder-inited", write_generated)
    app.connect("source-read", read_page)
    app.connect("html-page-context", add_search)
    app.connect("build-finished", write_page_texts)


def write_generated(_app: Sphinx) -> None:
    """Bring the generated pages up to date; a manual without a generator has none."""
    if (_DOCS / "_generate").is_dir():
        sys.path.insert(0, str(_DOCS.parent))
        from docs._generate import write_pages  # noqa: PLC0415 - found from here on

        write_pages()


def read_page(_app: Sphinx, name: str, source: list[str]) -> None:
    """Add what plain Markdown cannot express: tables of contents and links out of the manual."""
    folder = (_DOCS / name).parent
    text = source[0]
    if name.rpartition("/")[2] == "index":
        text += _contents(folder, text)
    source[0] = _outside_fences(
        text, lambda prose: _LINK.sub(lambda link: _kept(folder, link), prose)
    )


def add_search(
    app: Sphinx, name: str, _template: str, _context: dict[str, Any], _doctree: object
) -> None:
    """Give the search page a script of ours: what comes first, and excerpts where the site is opened as files."""
    if name == "search":
        app.add_js_file("search.js")


def write_page_texts(app: Sphinx, error: Exception | None) -> None:
    """Write the texts of all pages for that script."""
    if error is None and app.builder.name == "html":
        written = {
            f"./{name}.html": (app.outdir / f"{name}.html").read_text(encoding="utf-8")
            for name in app.env.found_docs
        }
        texts = {
            address: found[0]
            for address, html in written.items()
            if (found := _ARTICLE.search(html))
        }
        script = f"const PAGE_TEXTS = {json.dumps(texts)};\n"
        (app.outdir / "_static" / "page_texts.js").write_text(script, encoding="utf-8")


def _contents(folder: Path, text: str) -> str:
    """The pages below an index page that it links to, in its order, each once; a folder's pages belong to its own index."""
    targets = dict.fromkeys(
        target.partition("#")[0] for _, target in _LINK.findall(_FENCE.sub("", text))
    )
    pages = [target for target in targets if re.fullmatch(r"[^/]+\.md|[^./]+/index\.md", target)]
    listed = "\n".join(page.removesuffix(".md") for page in pages if (folder / page).is_file())
    return f"\n```{{toctree}}\n:hidden:\n:titlesonly:\n\n{listed}\n```\n"


def _kept(folder: Path, link: re.Match[str]) -> str:
    """The link, or its text when it leads to a page or a folder outside of the manual; files are offered for download."""
    text, target = link.groups()
    found = (folder / target.partition("#")[0]).resolve()
    leads_out = _DOCS not in (found, *found.parents) and (found.is_dir() or found.suffix == ".md")
    return text if leads_out else link[0]


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    """The text with everything but its code blocks changed."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])
