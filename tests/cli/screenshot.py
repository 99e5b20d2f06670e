"""Makes the picture of the terminal in the manual and the README: ``python -m tests.cli.screenshot``."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests._support.terminal import open_terminal
from tests._support.tree import ROOT

PICTURE = ROOT / "docs" / "how-to" / "images" / "terminal.svg"
WIDTH = 96
# Without rich's link to a font on another server.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"><style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}</style><defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def final_rows(written: str) -> list[str]:
    """The rows that stay, with their colours; none of them is wider than the window."""
    rows: list[str] = []
    for piece in re.split(r"(\x1b\[\d+F)\x1b\[J", written.replace("\r", "")):
        if up := re.fullmatch(r"\x1b\[(\d+)F", piece):
            rows = rows[: -int(up[1])]
        else:
            rows += piece.split("\n")[:-1]
    return rows


def main() -> None:
    """Write the picture of `make run`."""
    with (
        tempfile.TemporaryDirectory() as home,
        open_terminal(
            "run",
            home=Path(home),
            cwd=ROOT,
            size=(40, WIDTH),
            program=["make", "--no-print-directory"],
        ) as terminal,
    ):
        assert terminal.end() == 0, terminal.text
        rows = ["\x1b[1m$ make run\x1b[0m", *final_rows(terminal.screen)]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for row in rows:
        console.print(Text.from_ansi(row))
    PICTURE.write_text(
        console.export_svg(title="amplifier", code_format=FORMAT, unique_id="terminal"),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
