"""Words and small formats that answers share, and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from amplifier.modules._tool_base import shown

from ._desk import MODULES, Result

LONGEST_ANSWER = 24_000

_SINGULAR = (
    ("files", "file"),
    ("directories", "directory"),
    ("lines", "line"),
    ("were", "was"),
    ("in their", "in its"),
)

REAL_MODEL = (
    "For a language model set ANTHROPIC_API_KEY or OPENAI_API_KEY and run `amplifier run -p anthropic` or "
    "`amplifier run -p openai`; `-p local` runs a model file on this machine."
)
FOOTER = f"_provider-offline: no language model, only fixed rules over your words and the tools' results. {REAL_MODEL}_"

_ABILITIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("list the files; list the Python files in src", ("list_directory", "glob")),
    ("read README.md; show lines 10 to 20 of setup.cfg", ("read_file",)),
    ("find where `timeout` is mentioned; find files named conftest.py", ("grep", "glob")),
    ("count the Python files; count the lines in the longest one; count the words in README.md", ("glob", "grep")),
    ("summarise this directory; summarise README.md (by numbers)", ("glob", "grep", "read_file")),
    ('write "some text" to notes.txt; save the results to report.md', ("write_file",)),
    ('replace "old" with "new" in notes.txt', ("edit_file",)),
    ("run `git status`", ("bash",)),
    ("fetch https://example.org", ("web_fetch",)),
    ('add "buy milk" to the todo list; show the todo list', ("todo",)),
)


@attrs.frozen
class Section:
    """The answer to one intent."""

    title: str
    body: str


def help_text(words: str, offered: Collection[str], refusals: Sequence[str] = ()) -> str:
    """What it is and what it can do, with what is missing named."""
    start = "".join(f"{refusal}\n\n" for refusal in refusals)
    start += f"I found nothing I know how to do in {shown(ascii(words), 200)}.\n\n" if words else ""
    lines = []
    for example, tools in _ABILITIES:
        missing = [f"{tool} of {MODULES[tool]}" for tool in tools if tool not in offered]
        lines.append(f"- {example}" + (f" — not here: needs {', '.join(missing)}" if missing else ""))
    return (
        f"{start}I am provider-offline, no language model: fixed rules that know a few requests about the working "
        "directory and carry them out with the real tools. You can ask, also for several things at once:\n\n"
        + "\n".join(lines)
        + f"\n\n{REAL_MODEL}"
    )


def number(count: int, noun: str, nouns: str | None = None) -> str:
    """``1,234 lines``, ``1 line``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def there_are(count: int, noun: str, nouns: str | None = None, *, at_least: str = "") -> str:
    """``There are 1,234 lines``, ``There is 1 line``."""
    return f"There {'is' if count == 1 else 'are'} {at_least}{number(count, noun, nouns)}"


def listed(items: Sequence[str], most: int) -> str:
    """Some lines of a list, and how many are left out."""
    lines = [f"- {item}" for item in items[:most]]
    if len(items) > most:
        lines.append(f"- … and {len(items) - most:,} more")
    return "\n".join(lines)


def fenced(text: str, *, lines: int = 40, characters: int = 6_000) -> str:
    """Text as it stands, cut to some lines; the fence is longer than any in it."""
    kept = text[:characters].split("\n")
    cut = "\n".join(kept[:lines]).rstrip("\n")
    ticks = "```"
    while ticks in cut:
        ticks += "`"
    rest = "" if len(kept) <= lines and len(text) <= characters else "\n(the rest is not shown)"
    return f"{ticks}\n{cut}\n{ticks}{rest}"


def failed(result: Result, what: str) -> str:
    """What did not work, in the tool's words."""
    return f"Could not {what}: {shown(result.text, 500)}"


def notes_of(results: Iterable[Result]) -> str:
    """What tools say they left out."""
    notes = dict.fromkeys(str(result.data["note"]) for result in results if result.data.get("note"))
    return "".join(f"\n\nNote: {shown(_of_one(note), 300)}." for note in notes)


def _of_one(note: str) -> str:
    """A tool's note with the words after a lone 1 in the singular."""
    return "; ".join(_singular(part) if re.match(r"1 \D", part) else part for part in note.split("; "))


def _singular(words: str) -> str:
    for several, one in _SINGULAR:
        words = re.sub(rf"\b{several}\b", one, words, count=1)
    return words


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as a table of Markdown."""
    keys = list(rows[0])
    lines = [f"| {' | '.join(keys)} |", f"|{'|'.join('---' for _ in keys)}|"]
    for row in rows:
        lines.append(f"| {' | '.join(_cell(row[key]) for key in keys)} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else shown(str(value), 200)
    return text.replace("|", "\\|").replace("\n", " ")
