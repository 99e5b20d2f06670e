"""Markdown of a model as rows of a terminal, while it arrives.

A block (a paragraph, a list, a table, a code block) that a later one follows cannot change any more: its rows are final. The rows of
the last block may change with every word. Text is made visible before it is parsed and, because Markdown has escapes of its own, once
more in what was rendered; links are shown with their address and never become links of the terminal.

Import this module only where an answer is rendered: other commands save the time that importing rich.markdown takes.
"""

from __future__ import annotations

import io
import re
import textwrap
from functools import lru_cache
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from amplifier._internal.json import visible_text

LONGEST_BLOCK = 6_000
"""Characters of a block; a longer one is rendered in parts, so that no text makes the terminal wait."""

_NARROWEST = 10
_DEEPEST = 12
"""Levels of nesting; what is nested deeper is shown as it was written, because parsers and narrow terminals drop it."""

_LANGUAGES = re.compile(
    "bash|c|cpp|css|diff|dockerfile|go|html|ini|java|javascript|js|json|kotlin|lua|make|markdown|md|php|py|python|rb|ruby|rs|rust|"
    "scss|sh|shell|sql|swift|toml|ts|tsx|typescript|xml|ya?ml|zsh",
    re.IGNORECASE,
)
"""Languages that are highlighted: the model names the lexer, and not each of the hundreds there are is fast on every text."""

# Left out: HTML, definitions of links and images, which rich would not show, and <addresses>, which it would show twice.
_PARSER = (
    MarkdownIt()
    .enable(["strikethrough", "table"])
    .disable(["html_block", "html_inline", "reference", "image", "autolink"])
)
_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.code": "cyan",
        "markdown.block_quote": "italic",
        "markdown.item.number": "cyan",
        "markdown.item.bullet": "cyan",
        "markdown.link_url": "underline",
    }
)


class MarkdownRows:
    """The rows of one text that arrives in pieces.

    Args:
        width: Columns of the terminal.
        colour: Whether rows may be coloured; emphasis is shown either way.
        theme: For code.
    """

    def __init__(self, width: int, *, colour: bool, theme: str = "ansi_dark") -> None:
        self.width = width
        self._theme = theme
        self._colour = colour
        self._pending = ""
        self._rendered: tuple[str, list[str]] = ("", [])
        self._has_rows = False
        self._is_part = False  # of a block that was cut

    def add(self, text: str) -> list[str]:
        """Add a piece; returns the rows that are final now."""
        rows: list[str] = []
        for start in range(0, len(text), LONGEST_BLOCK // 4):
            piece = visible_text(text[start : start + LONGEST_BLOCK // 4])
            self._pending += piece
            if "\n" in piece or len(self._pending) > LONGEST_BLOCK:
                rows += self._finished()
        return rows

    def unfinished(self) -> list[str]:
        """The rows of the block that may still change."""
        if self._rendered[0] != self._pending:
            self._rendered = (self._pending, self._render(self._pending))
        return self._separated(self._rendered[1])

    def finish(self) -> list[str]:
        """The rest; what is added afterwards begins a block."""
        rows = self.unfinished()
        self._has_rows, self._is_part, self._pending = self._has_rows or bool(rows), False, ""
        return rows

    def drop(self) -> None:
        """Drop the block that may still change: the model begins anew."""
        self._pending, self._is_part = "", False

    def _finished(self) -> list[str]:
        """Take the blocks that are complete. Only whole lines count: the rest of a line can still make it part of the block before."""
        whole, _, begun = self._pending.rpartition("\n")
        blocks = _blocks(whole + "\n")
        cut = blocks[-1][0] if len(blocks) > 1 else 0
        rows: list[str] = []
        if cut:
            lines = self._pending.split("\n")
            done, self._pending = "\n".join(lines[:cut]), "\n".join(lines[cut:])
            rows = self._separated(self._render(done))
            self._has_rows, self._is_part = self._has_rows or bool(rows), False
        if len(self._pending) > LONGEST_BLOCK:
            last = blocks[-1][1] if blocks else None
            rest = begun if len(begun) < LONGEST_BLOCK else ""
            self._pending = self._pending[: len(self._pending) - len(rest)]
            rows += self.finish()
            self._is_part = True
            self._pending = (
                f"{last.markup}{last.info}\n{rest}"
                if last is not None and last.type == "fence"
                else rest
            )
        return rows

    def _render(self, text: str) -> list[str]:
        return render_markdown(text, self.width, colour=self._colour, theme=self._theme)

    def _separated(self, rows: list[str]) -> list[str]:
        return ["", *rows] if rows and self._has_rows and not self._is_part else rows


def render_markdown(text: str, width: int, *, colour: bool, theme: str = "ansi_dark") -> list[str]:
    """The rows of some Markdown: its blocks with a blank row between two of them."""
    starts = [start for start, _ in _blocks(text)]
    lines = text.split("\n")
    rows: list[str] = []
    for first, end in zip([0, *starts[1:]], [*starts[1:], len(lines)], strict=True):
        block = _block_rows(
            "\n".join(lines[first:end]), max(width, _NARROWEST), colour=colour, theme=theme
        )
        rows += ["", *block] if rows and block else block
    return rows


def _block_rows(text: str, width: int, *, colour: bool, theme: str) -> list[str]:
    """The rows of a block, without blank ones around them."""
    if not text.strip():
        return []
    console = _console(width)
    try:
        rendered = _Rendered(text, theme)
        if any(token.level > _DEEPEST for token in rendered.parsed):
            raise ValueError("nested too deeply")
        lines = console.render_lines(rendered, pad=False)
        rows = [
            "".join(_written(segment, colour=colour) for segment in _trimmed(line))
            for line in lines
        ]
    except Exception:  # noqa: BLE001  # two libraries on a text that someone chose; it is shown as it is
        shown = text.expandtabs(4).split("\n")
        rows = [
            row
            for line in shown
            for row in textwrap.wrap(line, width, drop_whitespace=False) or [""]
        ]
    while rows and not rows[-1]:
        rows.pop()
    while rows and not rows[0]:
        rows.pop(0)
    return rows


def _blocks(text: str) -> list[tuple[int, Token]]:
    """The outermost blocks, each with the number of its first line."""
    return [
        (token.map[0], token)
        for token in _parse(text)
        if token.level == 0 and token.map and token.nesting >= 0
    ]


@lru_cache(maxsize=4)
def _console(width: int) -> Console:
    return Console(
        width=width, file=io.StringIO(), force_terminal=True, legacy_windows=False, theme=_THEME
    )


def _parse(text: str) -> list[Token]:
    tokens = _PARSER.parse(text)
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":  # a line that the model ended stays one
                child.type = "hardbreak"
    return tokens


def _trimmed(line: list[Segment]) -> list[Segment]:
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []


def _written(segment: Segment, *, colour: bool) -> str:
    text = visible_text(segment.text, multiline=False)
    if segment.style is None or segment.control:
        return text
    style = (segment.style if colour else segment.style.without_color).update_link(None)
    return style.render(text, color_system=ColorSystem.STANDARD)


class _Code(CodeBlock):
    """Code in the terminal's own colours and without a frame, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The highlighted code."""
        code = str(self.text).rstrip()
        if _LANGUAGES.fullmatch(self.lexer_name):
            yield Syntax(
                code, self.lexer_name, theme=self.theme, background_color="default", word_wrap=True
            )
        else:
            yield Text(code, style="markdown.code")


class _Heading(Heading):
    """A heading on the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The text."""
        yield self.text


class _Rendered(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str, theme: str) -> None:
        super().__init__("", code_theme=theme, hyperlinks=False)
        self.parsed: Any = _parse(text)
