"""Render the Markdown of a model as rows of a terminal while it arrives.

Import this module only to render an answer, because importing rich.markdown takes time.
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

MAX_BLOCK = 6_000
"""Maximum size of a block.

A longer one is rendered in parts, so that it can't block the terminal.
"""

_MIN_WIDTH = 10
_MAX_LEVELS = 12
"""Maximum nesting. Deeper text is shown unrendered, because parsers and terminals drop it."""

_LANGUAGES = re.compile(
    "bash|c|cpp|css|diff|dockerfile|go|html|ini|java|javascript|js|json|kotlin|lua|make|markdown|"
    "md|php|py|python|rb|ruby|rs|rust|scss|sh|shell|sql|swift|toml|ts|tsx|typescript|xml|ya?ml|zsh",
    re.IGNORECASE,
)
"""Highlighted languages. The model names the lexer, and not all lexers are fast on every text."""

# rich would hide HTML, images and link definitions, and would show <addresses> twice.
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


# A block (a paragraph, a list, a table, a code block) can no longer change once another one
# follows, so its rows are final. The rows of the last block may change with every word.
#
# Text is made visible before it is parsed and, because Markdown has its own escapes, again after it
# was rendered. Links are shown with their address and never become links of the terminal.
class MarkdownRows:
    """The rows of one text that arrives in pieces.

    Args:
        width: Columns of the terminal.
        colour: True if rows may be coloured. Emphasis is shown either way.
        theme: The theme of code.
    """

    def __init__(self, width: int, *, colour: bool, theme: str = "ansi_dark") -> None:
        self.width = width
        self._theme = theme
        self._colour = colour
        self._pending = ""
        self._rendered: tuple[str, list[str]] = ("", [])
        self._has_rows = False
        # True if the pending text continues a block that was rendered in part.
        self._is_part = False

    def add(self, text: str) -> list[str]:
        """Add a piece, and return the rows that are final now."""
        rows: list[str] = []
        for start in range(0, len(text), MAX_BLOCK // 4):
            piece = visible_text(text[start : start + MAX_BLOCK // 4])
            self._pending += piece
            if "\n" in piece or len(self._pending) > MAX_BLOCK:
                rows += self._finished()
        return rows

    def unfinished(self) -> list[str]:
        """Return the rows of the block that may still change."""
        if self._rendered[0] != self._pending:
            self._rendered = (self._pending, self._render(self._pending))
        return self._separated(self._rendered[1])

    def finish(self) -> list[str]:
        """Return the remaining rows. Text that is added later starts a new block."""
        rows = self.unfinished()
        self._has_rows, self._is_part, self._pending = self._has_rows or bool(rows), False, ""
        return rows

    def drop(self) -> None:
        """Drop the block that may still change, because the model starts over."""
        self._pending, self._is_part = "", False

    def _finished(self) -> list[str]:
        """Remove complete blocks, and return their rows.

        Only complete lines count, because the rest of a line may still make it part of the previous
        block.
        """
        complete, _, begun = self._pending.rpartition("\n")
        blocks = _blocks(complete + "\n")
        cut = blocks[-1][0] if len(blocks) > 1 else 0
        rows: list[str] = []
        if cut:
            lines = self._pending.split("\n")
            done, self._pending = "\n".join(lines[:cut]), "\n".join(lines[cut:])
            rows = self._separated(self._render(done))
            self._has_rows, self._is_part = self._has_rows or bool(rows), False
        if len(self._pending) > MAX_BLOCK:
            last = blocks[-1][1] if blocks else None
            rest = begun if len(begun) < MAX_BLOCK else ""
            self._pending = self._pending[: len(self._pending) - len(rest)]
            rows += self.finish()
            self._is_part = True
            is_fence = last is not None and last.type == "fence"
            self._pending = f"{last.markup}{last.info}\n{rest}" if last and is_fence else rest
        return rows

    def _render(self, text: str) -> list[str]:
        return render_markdown(text, self.width, colour=self._colour, theme=self._theme)

    def _separated(self, rows: list[str]) -> list[str]:
        return ["", *rows] if rows and self._has_rows and not self._is_part else rows


def render_markdown(text: str, width: int, *, colour: bool, theme: str = "ansi_dark") -> list[str]:
    """Return the rows of a Markdown text, with a blank row between blocks."""
    starts = [start for start, _ in _blocks(text)]
    lines = text.split("\n")
    rows: list[str] = []
    for first, end in zip([0, *starts[1:]], [*starts[1:], len(lines)], strict=True):
        source = "\n".join(lines[first:end])
        block = _block_rows(source, max(width, _MIN_WIDTH), colour=colour, theme=theme)
        rows += ["", *block] if rows and block else block
    return rows


def _block_rows(text: str, width: int, *, colour: bool, theme: str) -> list[str]:
    """Return the rows of a block, without blank ones around them."""
    if not text.strip():
        return []
    console = _console(width)
    try:
        rendered = _Rendered(text, theme)
        if any(token.level > _MAX_LEVELS for token in rendered.parsed):
            raise ValueError("nested too deeply")
        lines = console.render_lines(rendered, pad=False)
        rows = [
            "".join(_written(segment, colour=colour) for segment in _trimmed(line))
            for line in lines
        ]
    # Two libraries parse an untrusted text. If one fails, show the text unrendered.
    except Exception:  # noqa: BLE001
        rows = [
            row
            for line in text.expandtabs(4).split("\n")
            for row in textwrap.wrap(line, width, drop_whitespace=False) or [""]
        ]
    while rows and not rows[-1]:
        rows.pop()
    while rows and not rows[0]:
        rows.pop(0)
    return rows


def _blocks(text: str) -> list[tuple[int, Token]]:
    """Return the outermost blocks, each with the number of its first line."""
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
            # Keep the line breaks of the model.
            if child.type == "softbreak":
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
        """Yield the highlighted code."""
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
        """Yield the text."""
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
