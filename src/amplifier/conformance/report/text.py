"""The sections of a report as lines of text, for a terminal or a file, and how files are named in them. Every text of the module is made inert."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from amplifier._json import visible_text
from amplifier.conformance.report.outcome import STATUS_WORDS, Cause, ClauseOutcome, Finding


def shown_location(found: Finding) -> str | None:
    """The location for a reader: below the working directory relative to it, elsewhere absolute, so that editors find it."""
    if found.file is None:
        return found.location
    file = _below(Path(found.file), Path()) or found.file
    return file if found.line is None else f"{file}:{found.line}"


def repository_path(file: str) -> str | None:
    """The path of a file from the root of its repository, with forward slashes; None if it belongs to none.

    The root is the checkout of a GitHub job that contains the file, else the nearest folder above it with a ``.git``, else the
    working directory.
    """
    path = Path(file)
    workspace = os.environ.get("GITHUB_WORKSPACE")
    checkouts = [Path(workspace)] if workspace else []
    repositories = [folder for folder in path.parents if (folder / ".git").exists()][:1]
    for root in [*checkouts, *repositories, Path()]:
        relative = _below(path, root)
        if relative is not None:
            return relative
    return None


def _below(path: Path, folder: Path) -> str | None:
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except (ValueError, OSError):
        return None


Colour = Literal["red", "green", "yellow", "dim", "bold"]
Paint = Callable[[str, Colour], str]
"""Colours a text, or leaves it as it is."""

_INDENT = "  "
_NARROWEST = 40
_LONGEST_INPUT = 300


def no_paint(text: str, _colour: Colour) -> str:
    """Leave a text as it is."""
    return text


def clause_lines(outcomes: Iterable[ClauseOutcome], *, width: int | None, paint: Paint = no_paint) -> list[str]:
    """One line for each clause: what became of it, its id and its promise, cut to the width."""
    lines = []
    for outcome in outcomes:
        status, colour = _status(outcome)
        promise = visible_text(outcome.text, multiline=False)
        head = f"{_INDENT}{status:<13}{outcome.id:<4}"
        if width is not None and len(head) + len(promise) > width:
            promise = f"{promise[: max(width - len(head) - 1, 1)]}…"
        lines.append(f"{_INDENT}{paint(f'{status:<13}', colour)}{outcome.id:<4}{promise}")
    return lines


def _status(outcome: ClauseOutcome) -> tuple[str, Colour]:
    if outcome.status == "broken":
        return ("broken", "red") if outcome.level == "required" else ("recommended", "yellow")
    if outcome.status == "kept":
        return "kept", "green"
    return STATUS_WORDS[outcome.status], "dim"


def cause_lines(cause: Cause, *, width: int | None = None, paint: Paint = no_paint) -> list[str]:
    """A cause and what is known about it."""
    rank = "" if cause.is_required else " (recommended)"
    head = f"{', '.join(cause.clauses)}{rank}"
    what = paragraph(f"{head}: {visible_text(cause.shown.what)}", width=width, indent=_INDENT, hanging=_INDENT * 2)
    lines = [what[0].replace(head, paint(head, "red" if cause.is_required else "yellow"), 1), *what[1:]]
    for label, text in details(cause, _LONGEST_INPUT).items():
        # Commands and places stay on one line, so that they can be copied and clicked.
        room = None if label in ("reproduce", "look at", "cancelled at") else width
        entry = f"{label}: {visible_text(text)}"
        first, *more = paragraph(entry, width=room, indent=_INDENT * 2, hanging=_INDENT * 3)
        lines += [first.replace(f"{label}:", paint(f"{label}:", "bold"), 1), *more]
    return lines


def details(cause: Cause, longest_input: int) -> dict[str, str]:
    """What is known about a cause besides its clauses and what happened, as texts by their labels."""
    first = cause.shown
    given = None if first.input is None else repr(first.input)
    if given is not None and len(given) > longest_input:
        given = f"{given[: longest_input - 40]}… ({len(given)} characters)"
    texts = {
        "input": given,
        "on": ", ".join(cause.backends),
        "cancelled at": first.cancelled_at,
        "look at": shown_location(first),
        "fix": " ".join(cause.hints),
        "found by": ", ".join(cause.checks) if len(cause.checks) > 1 else "",
        "reproduce": first.reproduce,
    }
    return {label: text for label, text in texts.items() if text}


def paragraph(text: str, *, width: int | None, indent: str = "", hanging: str = "") -> list[str]:
    """A text in lines that are no wider than the width; every line but the first gets the hanging indent."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        start = hanging if lines else indent
        if width is None:
            lines.append(f"{start}{line}")
            continue
        lines += textwrap.wrap(
            line,
            max(width, _NARROWEST),
            initial_indent=start,
            subsequent_indent=hanging,
            break_on_hyphens=False,
        )
    return lines


def id_ranges(ids: Sequence[str]) -> str:
    """Clause ids, each a letter and a number, in few words: ``A1 to A3, T5``."""
    parts: list[str] = []
    for _, members in groupby(enumerate(ids), key=lambda pair: (pair[1][:1], int(pair[1][1:]) - pair[0])):
        run = [each for _, each in members]
        parts += run if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
    return ", ".join(parts)
