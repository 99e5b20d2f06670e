"""Tables for people: columns on a terminal, tab-separated values in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from amplifier._json import visible_text

__all__ = ["print_table"]


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text of any origin to standard output."""
    shown = [[visible_text(cell, multiline=False) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in shown:
            print("\t".join(row))
        return
    from rich.console import Console  # noqa: PLC0415  # a fifth of a second that pipes need not wait
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, no_wrap=number == 0, overflow="ellipsis")
    for row in shown:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets of others are not markup
    Console().print(table)
