r"""Converts HTML to readable text; pure, and in linear time for every page.

Not the standard library's parser: some versions of it take a minute for 60 kB of ``<a <a <a``. This one looks at every
character a bounded number of times: a search that fails is not tried again further on.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urljoin

_MARKUP = re.compile(r"<(?=[a-zA-Z/!?])")
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]*)")
_REST = re.compile(r"""(?:[^"'>]|"[^"]*"|'[^']*')*+>""")
_ATTRIBUTE = re.compile(r"""(?<![a-zA-Z-])([a-zA-Z-]++)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]++))""")
_SPACE = re.compile(r"[ \t\n\r\f\v\xa0]+")
_BLANK_LINES = re.compile(r"\n{3,}")
_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")  # Python refuses numbers of so many digits

_DROPPED: Final = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "math"})
_RAW: Final = frozenset({"script", "style"})
_BLOCKS: Final = frozenset(
    [
        *("html", "body", "title", "address", "article", "aside", "footer", "header", "main", "nav", "section", "div"),
        *("blockquote", "p", "pre", "hr", "ul", "ol", "li", "dl", "dt", "dd", "figure", "figcaption", "details"),
        *("summary", "dialog", "form", "fieldset", "legend", "option", "table", "tbody", "tfoot", "thead", "tr"),
    ]
)
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_CELLS: Final = frozenset({"td", "th"})
_LONGEST_LINK = 2000


def readable(page: str, base: str, check: Callable[[], None]) -> tuple[str, str]:
    """Turn a page into text.

    Args:
        page: The HTML.
        base: The URL that links are relative to.
        check: Called now and then; may raise to end the work.

    Returns:
        The title and the text: a line per block, ``#`` for headings, ``-`` for items, ``[text](url)`` for links.
    """
    writer = _Writer(base)
    for number, (name, closing, text) in enumerate(_tokens(page)):
        if number % 1000 == 0:
            check()
        if name is None:
            writer.write(text)
        elif closing:
            writer.close(name)
        else:
            writer.open(name, text)
    return writer.title.strip(), writer.text()


def _tokens(page: str) -> Iterator[tuple[str | None, bool, str]]:
    """Text as ``(None, False, text)``, tags as ``(name, is closing, attributes)``."""
    position, unclosed, heeds_quotes = 0, set[str](), True
    while True:
        markup = _MARKUP.search(page, position)
        if markup is None:
            yield None, False, page[position:]
            return
        start = markup.start()
        if start > position:
            yield None, False, page[position:start]
        tag = _TAG.match(page, start)
        if tag is None:
            if page.startswith("<!--", start):
                end = page.find("-->", start + 4)
                position = end + 3
            else:
                end = page.find(">", start)
                position = end + 1
            if end < 0:
                return
            continue
        name, closing = tag[1].lower(), page[start + 1] == "/"
        rest = _REST.match(page, tag.end()) if heeds_quotes else None
        # After a quote that is never closed every tag ends at the next bracket, or the page ends inside it.
        heeds_quotes = rest is not None
        position = rest.end() if rest else page.find(">", start) + 1
        if position == 0:
            return
        yield name, closing, page[tag.end() : position - 1]
        if name in _DROPPED and not closing and name not in unclosed:
            end_tag = re.compile(f"</{name}", re.IGNORECASE).search(page, position)
            if end_tag is not None:
                position = end_tag.start()
            elif name in _RAW:
                return
            else:
                unclosed.add(name)


class _Writer:
    """Collects text; keeps track of the current line."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._parts: list[str] = []
        self._line_is_empty = True
        self._space_is_due = False
        self._preformatted = 0
        self._link: tuple[str, int] | None = None
        self._in_title = False
        self.title = ""

    def write(self, text: str) -> None:
        text = html.unescape(_LONG_REFERENCE.sub("\N{REPLACEMENT CHARACTER}", text) if "&#" in text else text)
        if self._in_title:
            self.title = _SPACE.sub(" ", self.title + text)[:500]
            return
        if self._preformatted:
            self._put(text)
            return
        words = _SPACE.sub(" ", text)
        if words.startswith(" ") and not self._line_is_empty:
            self._space_is_due = True
        if stripped := words.strip(" "):
            self._put(stripped)
            self._space_is_due = words.endswith(" ")

    def _put(self, text: str) -> None:
        if self._space_is_due:
            self._parts.append(" ")
            self._space_is_due = False
        self._parts.append(text)
        self._line_is_empty = text.endswith("\n")

    def _end_line(self) -> None:
        self._space_is_due = False
        if not self._line_is_empty:
            self._parts.append("\n")
            self._line_is_empty = True

    def open(self, name: str, attributes: str) -> None:
        if name == "br":
            self._put("\n")
        elif name in _HEADINGS:
            self._end_line()
            self._parts.append(f"\n{_HEADINGS[name]}")
        elif name in _CELLS:
            if not self._line_is_empty:
                self._put(" | ")
        elif name == "a":
            self._open_link(attributes)
        elif name == "img":
            if alternative := _attribute(attributes, "alt").strip():
                self.write(f"[image: {alternative[:300]}] ")
        elif name in _BLOCKS:
            self._end_line()
            if name == "li":
                self._parts.append("- ")
            elif name in ("p", "pre", "table", "blockquote"):
                self._parts.append("\n")
            self._preformatted += name == "pre"
            self._in_title = name == "title" and not self.title

    def close(self, name: str) -> None:
        if name == "a":
            self._close_link()
        elif name in _BLOCKS or name in _HEADINGS:
            self._in_title = False
            self._close_link()
            self._end_line()
            if name == "pre":
                self._preformatted = max(0, self._preformatted - 1)
            if name in _HEADINGS or name in ("p", "pre", "table", "blockquote", "ul", "ol"):
                self._parts.append("\n")

    def _open_link(self, attributes: str) -> None:
        self._close_link()
        address = _attribute(attributes, "href").strip()[:_LONGEST_LINK]
        if address and not address.startswith("#"):
            try:
                target = urljoin(self._base, address)
            except ValueError:
                return
            if target.startswith(("http://", "https://")):
                self._put("[")
                self._line_is_empty = False
                self._link = (target, len(self._parts))

    def _close_link(self) -> None:
        if self._link is None:
            return
        (target, start), self._link = self._link, None
        if len(self._parts) > start:
            due, self._space_is_due = self._space_is_due, False
            self._parts.append(f"]({target})")
            self._space_is_due = due
        else:
            self._parts[-1] = ""  # a link around nothing, or around a picture without words

    def text(self) -> str:
        self._close_link()
        lines = "".join(self._parts).split("\n")
        return _BLANK_LINES.sub("\n\n", "\n".join(line.rstrip() for line in lines)).strip()


def _attribute(attributes: str, wanted: str) -> str:
    for found in _ATTRIBUTE.finditer(attributes):
        if found[1].lower() == wanted:
            return html.unescape(_LONG_REFERENCE.sub("", found[2] or found[3] or found[4] or ""))
    return ""
