"""The page of what each protocol honours, from the table beside the tests that show it: ``tests/servers/protocols.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ._markdown import page, table

_TABLE = Path(__file__).parents[2] / "tests" / "servers" / "protocols.toml"


def protocols_page() -> str:
    """Every protocol feature by feature, with the tests."""
    read = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return page("What each protocol honours", read["intro"].strip(), *map(_section, read["table"]))


def _section(given: dict[str, Any]) -> str:
    rows = [
        [*row["cells"], ", ".join(dict.fromkeys(_shown(test) for test in row["tests"]))]
        for row in given["rows"]
    ]
    parts = [
        f"## {given['title']}",
        given.get("before", ""),
        table([*given["columns"], "shown by"], rows),
    ]
    return "\n\n".join(part.strip() for part in [*parts, given.get("after", "")] if part.strip())


def _shown(test: str) -> str:
    return f"`{Path(test.partition('::')[0]).stem}`"
