"""The options of tool-search."""

from __future__ import annotations

from pathlib import Path

import attrs

from ..._shared.configuration import Kind, choices, option, seconds, texts, whole_number
from .._paths import DEFAULT_IGNORED, directory_names

TOOLS = ("grep", "glob")

_ripgrep = Kind(
    "true to look for it, false to do without, or the program's absolute path",
    lambda value: isinstance(value, bool) or (isinstance(value, str) and Path(value).is_absolute()),
)


@attrs.frozen(kw_only=True)
class SearchOptions:
    """Where the tools search, how much one search may read and return, and with which program.

    Attributes:
        allowed_paths: The roots; the session's working directory if absent.
        tools: The tools to mount; both if absent, except a glob that is mounted already.
        ripgrep: The program, True to look for it, False to do without.
        ignore: Directories that are not entered.
        max_matches: Lines, or files, in one answer of grep.
        max_results: Files in one answer of glob.
        max_file_bytes: Larger files are left out.
        max_line_length: Bytes of a line that are searched.
        timeout: Seconds for one search.
        threads: Searches at the same time.
    """

    allowed_paths: tuple[str, ...] | None = option(texts(least=1), default=None, restricts=True)
    tools: tuple[str, ...] | None = option(choices(*TOOLS), default=None, restricts=True)
    ripgrep: bool | str = option(_ripgrep, default=True)
    ignore: frozenset[str] = option(directory_names, default=DEFAULT_IGNORED)
    max_matches: int = option(whole_number(1), default=200)
    max_results: int = option(whole_number(1), default=1000)
    max_file_bytes: int = option(whole_number(1), default=5 << 20)
    max_line_length: int = option(whole_number(1), default=2000)
    timeout: float = option(seconds, default=30.0)
    threads: int = option(whole_number(1), default=4)
