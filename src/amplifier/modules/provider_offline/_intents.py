"""What can be asked for, as values. Made by `_understanding`, answered in `_looking`, `_counting`, `_summarising`, `_doing`."""

from __future__ import annotations

from typing import TypeAlias

import attrs


@attrs.frozen(kw_only=True)
class Files:
    """Which files are meant.

    Attributes:
        paths: Files named one by one.
        kind: Words for a kind of files, such as ``Python``; empty for all.
        pattern: The glob pattern of the kind.
        directory: Where they are.
        pick: ``longest`` or ``shortest``, if one of them is meant.
    """

    paths: tuple[str, ...] = ()
    kind: str = ""
    pattern: str = "*"
    directory: str = "."
    pick: str = ""


@attrs.frozen(kw_only=True)
class ListFiles:
    """Which files are there?"""

    files: Files
    is_deep: bool = False


@attrs.frozen(kw_only=True)
class ReadFiles:
    """What do files say?

    Attributes:
        first: The first line wanted.
        most: Lines wanted, or None for as many as are shown anyway.
        is_end: Whether they are wanted from the end; `first` says nothing then.
    """

    files: Files
    first: int = 1
    most: int | None = None
    is_end: bool = False


@attrs.frozen(kw_only=True)
class FindText:
    """Where does a text stand?

    Attributes:
        only_count: Whether only the number is wanted.
    """

    text: str
    files: Files
    only_count: bool = False


@attrs.frozen(kw_only=True)
class FindFile:
    """Where is a file of this name?"""

    name: str
    directory: str = "."


@attrs.frozen(kw_only=True)
class CountFiles:
    """How many files are there, or directories?"""

    files: Files
    are_directories: bool = False


@attrs.frozen(kw_only=True)
class CountLines:
    """How many lines, or words, do files have?"""

    files: Files
    unit: str = "lines"


@attrs.frozen(kw_only=True)
class Summarise:
    """What is it, in numbers?"""

    files: Files


@attrs.frozen(kw_only=True)
class WriteFile:
    """Write a text, or the answers before this one as a report.

    Attributes:
        path: Where to; empty if no file was named.
        text: What; None for a report.
    """

    path: str
    text: str | None


@attrs.frozen(kw_only=True)
class ReplaceText:
    """Put one text in another's place."""

    path: str
    old: str
    new: str


@attrs.frozen(kw_only=True)
class RunCommand:
    """Run a command; empty if none was named."""

    command: str


@attrs.frozen(kw_only=True)
class FetchPage:
    """Read a page of the web."""

    url: str


@attrs.frozen(kw_only=True)
class Todo:
    """Show the list of todos, or add one."""

    text: str | None = None


@attrs.frozen(kw_only=True)
class Help:
    """What can you do?"""


@attrs.frozen(kw_only=True)
class Unknown:
    """Words that no rule fits.

    Attributes:
        part: The words among them that were not understood, where the others were and mean something else alone.
    """

    words: str
    part: str = ""


Intent: TypeAlias = (
    ListFiles
    | ReadFiles
    | FindText
    | FindFile
    | CountFiles
    | CountLines
    | Summarise
    | WriteFile
    | ReplaceText
    | RunCommand
    | FetchPage
    | Todo
    | Help
    | Unknown
)
"""Anything that can be asked for."""
