"""Convert HTML to readable text, in time linear in the size of the page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urljoin

# Some versions of the standard library's parser take a minute for 60 kB of ``<a <a <a``. This
# parser reads every character a bounded number of times. A tag or comment without an end extends to
# the end of the page.

_MARKUP: Final = re.compile(
    r"""<(/?)([a-zA-Z][a-zA-Z0-9:-]*+)((?:[^"'>]++|"[^"]*+"|'[^']*+'|["'])*+)>?|<!--(?:.*?-->|.*)|<[/!?][^>]*+>?""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(
    r"""(?<![a-zA-Z-])([a-zA-Z-]++)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]++))"""
)
_SPACE = re.compile(r"[ \t\n\r\f\v\xa0]+")
_BLANK_LINES = re.compile(r"\n{3,}")
# Python refuses to read numbers with very many digits.
_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")

_DROPPED: Final = frozenset(
    {"script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "math"}
)
_RAW: Final = frozenset({"script", "style"})
_BLOCKS: Final = frozenset(
    [
        *(
            "html",
            "body",
            "title",
            "address",
            "article",
            "aside",
            "footer",
            "header",
            "main",
            "nav",
            "section",
            "div",
        ),
        *("hr", "li", "dl", "dt", "dd", "figure", "figcaption", "details"),
        *(
            "summary",
            "dialog",
            "form",
            "fieldset",
            "legend",
            "option",
            "tbody",
            "tfoot",
            "thead",
            "tr",
        ),
    ]
)
_PARAGRAPHS: Final = frozenset(
    {"p", "pre", "table", "blockquote", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "h6"}
)
_MAX_LINK = 2000

# These marks stand in the text that is being built for the end of a line or a paragraph, a <br>, a
# cell of a table, and white space that stays.
_LINE, _PARAGRAPH, _BREAK, _CELL, _KEPT_SPACE, _KEPT_LINE = "\1\2\3\4\5\6"
_PREFORMATTED: Final = str.maketrans({" ": _KEPT_SPACE, "\t": _KEPT_SPACE * 4, "\n": _KEPT_LINE})
_BREAKS = re.compile(
    f"[ {_LINE}{_PARAGRAPH}{_BREAK}]*[{_LINE}{_PARAGRAPH}{_BREAK}][ {_LINE}{_PARAGRAPH}{_BREAK}]*"
)
_NOT_TEXT: Final = dict.fromkeys(range(1, 7))


def readable(page: str, base: str, check: Callable[[], None]) -> tuple[str, str]:
    """Turn a page into text.

    Args:
        page: The HTML.
        base: The URL that links are relative to.
        check: Called now and then. It may raise an exception to end the work.

    Returns:
        The title and the text: a line per block, ``#`` for headings, ``-`` for items,
        ``[text](url)`` for links.
    """
    writer = _Writer(base)
    for number, (name, closing, text) in enumerate(_tokens(page.translate(_NOT_TEXT))):
        if number % 1000 == 0:
            check()
        if name is None:
            writer.write(_unescaped(text))
        elif closing:
            writer.close(name)
        else:
            writer.open(name, text)
    return writer.title.strip(), writer.text()


def _tokens(page: str) -> Iterator[tuple[str | None, bool, str]]:
    """Yield text as ``(None, False, text)``, and tags as ``(name, is closing, attributes)``."""
    position, unclosed = 0, set[str]()
    while match := _MARKUP.search(page, position):
        yield None, False, page[position : match.start()]
        position, name = match.end(), (match[2] or "").lower()
        if not name:
            continue
        yield name, bool(match[1]), match[3]
        if name in _DROPPED and not match[1] and name not in unclosed:
            end = re.compile(f"</{name}", re.IGNORECASE).search(page, position)
            if end is not None:
                position = end.start()
            elif name in _RAW:
                return
            else:
                unclosed.add(name)
    yield None, False, page[position:]


class _Writer:
    """Collects text and marks, and cleans up the white space at the end."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._parts: list[str] = []
        self._preformatted = 0
        self._link: tuple[str, int] | None = None
        self._in_title = False
        self.title = ""

    def write(self, text: str) -> None:
        if self._in_title:
            self.title = _SPACE.sub(" ", self.title + text)[:500]
        elif self._preformatted:
            self._parts.append(text.translate(_PREFORMATTED))
        elif text:
            self._parts.append(_SPACE.sub(" ", text))

    def open(self, name: str, attributes: str) -> None:
        if name == "br":
            self._parts.append(_BREAK)
        elif name in ("td", "th"):
            self._parts.append(_CELL)
        elif name == "a":
            self._open_link(attributes)
        elif name == "img" and (alternative := _attribute(attributes, "alt").strip()):
            self.write(f"[image: {alternative[:300]}] ")
        elif name in _PARAGRAPHS:
            self._parts.append(_PARAGRAPH if name not in ("ul", "ol") else _LINE)
            if name[1:].isdigit():
                self._parts.append("#" * int(name[1:]) + " ")
            self._preformatted += name == "pre"
        elif name in _BLOCKS:
            self._parts.append(f"{_LINE}- " if name == "li" else _LINE)
            self._in_title = name == "title" and not self.title

    def close(self, name: str) -> None:
        if name == "a":
            self._close_link()
        elif name in _BLOCKS or name in _PARAGRAPHS:
            self._in_title = False
            self._close_link()
            self._parts.append(_PARAGRAPH if name in _PARAGRAPHS else _LINE)
            self._preformatted = max(0, self._preformatted - (name == "pre"))

    def _open_link(self, attributes: str) -> None:
        self._close_link()
        address = _attribute(attributes, "href").strip()[:_MAX_LINK]
        try:
            target = "" if address.startswith("#") else urljoin(self._base, address)
        except ValueError:
            return
        if address and target.startswith(("http://", "https://")):
            self._parts.append("[")
            self._link = (target, len(self._parts))

    def _close_link(self) -> None:
        if self._link is None:
            return
        (target, start), self._link = self._link, None
        if len(self._parts) > start:
            self._parts.append(f"]({target})")
        else:
            # The link is empty, or contains an image without a description.
            self._parts[-1] = ""

    def text(self) -> str:
        self._close_link()
        text = re.sub(" +", " ", "".join(self._parts))
        text = _BREAKS.sub(
            lambda run: "\n\n" if _PARAGRAPH in run[0] or run[0].count(_BREAK) > 1 else "\n", text
        ).strip()
        text = re.sub(f"(?m)^{_CELL} ?", "", text)
        text = (
            re.sub(f" ?{_CELL} ?", " | ", text).replace(_KEPT_SPACE, " ").replace(_KEPT_LINE, "\n")
        )
        return _BLANK_LINES.sub(
            "\n\n", "\n".join(line.rstrip() for line in text.split("\n"))
        ).strip()


def _attribute(attributes: str, name: str) -> str:
    for match in _ATTRIBUTE.finditer(attributes):
        if match[1].lower() == name:
            return _unescaped(match[2] or match[3] or match[4] or "")
    return ""


def _unescaped(text: str) -> str:
    return html.unescape(_LONG_REFERENCE.sub("\N{REPLACEMENT CHARACTER}", text)).translate(
        _NOT_TEXT
    )
