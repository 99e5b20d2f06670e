"""Counting files, lines and words, and choosing the longest."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from .._toolkit import shown
from ._desk import Desk, Result, Wanted
from ._intents import CountFiles, CountLines, Files
from ._looking import below, open_files, searched, where
from ._wording import Section, failed, listed, notes_of, number

_EVERY_LINE = "^"
_FILES_PER_SEARCH = 180
_MOST_SEARCHES = 8
_MOST_ALTERNATIVES = 20
_LONGEST_PATTERN = 900
_SPECIAL = re.compile(r"[*?\[\]{},]")
_MOST_FILES = 6
_READ = 2_000


@attrs.frozen(kw_only=True)
class Lines:
    """Lines of files.

    Attributes:
        by_path: Each file's number; files without a line are not in it.
        results: What they were taken from.
        is_partial: Whether there are more files than were counted.
        problem: Why there is nothing, if so.
    """

    by_path: dict[str, int] = attrs.field(factory=dict)
    results: Sequence[Result] = ()
    is_partial: bool = False
    problem: Result | None = None

    @property
    def total(self) -> int:
        """All of them together."""
        return sum(self.by_path.values())

    def at_least(self) -> str:
        """Words to put before a number."""
        return "at least " if self.is_partial else ""

    def picked(self, pick: str) -> str | None:
        """The longest or the shortest; of equal ones the first by name."""
        if not self.by_path:
            return None
        sign = -1 if pick == "longest" else 1
        return min(self.by_path, key=lambda path: (sign * self.by_path[path], path))


def lines_of(desk: Desk, files: Files) -> Lines:
    """Count the lines of all files of a kind; grep counts them, with a pattern that every line matches.

    A search answers for so many files only, so a large tree is searched in parts.
    """
    pattern, base = below(files), files.directory
    if not desk.offers("grep"):
        return Lines(problem=desk.call("grep", path=base))
    if not desk.offers("glob"):
        return _together([_search(base, searched(files))], desk, is_partial=False)
    listing = desk.call("glob", pattern=pattern, path=base)
    if not listing.ok:
        return Lines(problem=listing)
    paths = [path for path in listing.texts("paths") if not path.endswith("/")]
    if len(paths) <= _FILES_PER_SEARCH:
        return _together([_search(base, searched(files))], desk, is_partial=False)
    patterns = _packed(_parts(paths, base), files)
    is_partial = bool(listing.data.get("truncated")) or len(patterns) > _MOST_SEARCHES
    searches = [_search(base, packed) for packed in patterns[:_MOST_SEARCHES]]
    counted = _together(searches, desk, is_partial=is_partial)
    wanted = set(paths)
    return attrs.evolve(counted, by_path={path: n for path, n in counted.by_path.items() if path in wanted})


def _search(path: str, pattern: str) -> Wanted:
    return Wanted("grep", {"pattern": _EVERY_LINE, "path": path, "output_mode": "count", "glob": pattern})


def _together(searches: list[Wanted], desk: Desk, *, is_partial: bool) -> Lines:
    results = desk.calls(*searches)
    good = [result for result in results if result.ok]
    if not good:
        return Lines(problem=results[0])
    is_partial = is_partial or len(good) < len(results) or any(result.data.get("truncated") for result in good)
    return Lines(by_path=_counts(good), results=good, is_partial=is_partial)


def _parts(paths: list[str], directory: str) -> dict[str, int]:
    """Directories and single files that together hold all paths, and how many each; a directory fits into one search."""
    inside: dict[str | None, list[str]] = {}
    for path in paths:
        inside.setdefault(_top(path, directory), []).append(path)
    parts = dict.fromkeys(inside.pop(None, ()), 0)
    for top, below_it in inside.items():
        if len(below_it) <= _FILES_PER_SEARCH:
            parts[str(top)] = len(below_it)
        else:
            parts |= _parts(below_it, str(top))
    return parts


def _packed(parts: dict[str, int], files: Files) -> list[str]:
    """Patterns, each for as many parts as one search answers for."""
    base = "" if files.directory in (".", "./") else files.directory.removeprefix("./").rstrip("/") + "/"
    deep = "**" if files.pattern == "*" or "/" in files.pattern else f"**/{files.pattern}"
    packs: list[list[str]] = []
    room = length = 0
    for part, count in parts.items():
        name = _SPECIAL.sub("?", part.removeprefix(base))
        pattern = f"{name}/{deep}" if count else f"{name}/**"
        room -= max(count, 1)
        length += len(pattern) + 1
        if room < 0 or length > _LONGEST_PATTERN or len(packs[-1]) == _MOST_ALTERNATIVES:
            packs.append([])
            room, length = _FILES_PER_SEARCH - max(count, 1), len(pattern) + 1
        packs[-1].append(pattern)
    return [f"{{{','.join(pack)}}}" if len(pack) > 1 else pack[0] for pack in packs]


def _counts(results: Sequence[Result]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for result in results:
        for item in result.objects("counts"):
            count = item.get("count")
            if isinstance(count, int):
                counts[str(item.get("file_path"))] = count
    return counts


def _top(path: str, directory: str) -> str | None:
    """The directory directly below that a path is in; None for what lies at the top itself."""
    base = "" if directory in (".", "./") else directory.removeprefix("./").rstrip("/") + "/"
    first, slash, rest = path.removeprefix(base).partition("/")
    return base + first if slash and rest else None


def count_files(desk: Desk, intent: CountFiles) -> Section:
    """How many files there are."""
    files = intent.files
    title = f"Number of {files.kind + ' ' if files.kind else ''}files{where(files)}"
    result = desk.call("glob", pattern=below(files), path=files.directory)
    if not result.ok:
        return Section(title, failed(result, "count the files"))
    paths = [path for path in result.texts("paths") if not path.endswith("/")]
    folders: dict[str, int] = {}
    for path in paths:
        top = _top(path, files.directory) or "at the top"
        folders[top] = folders.get(top, 0) + 1
    more = "at least " if result.data.get("truncated") else ""
    place = where(files) or " in the working directory"
    body = f"There are {more}{number(len(paths), f'{files.kind} file'.strip())}{place}."
    if len(folders) > 1:
        largest = sorted(folders, key=lambda top: (-folders[top], top))[:4]
        body += " Most of them: " + ", ".join(f"{shown(top, 80)} ({folders[top]:,})" for top in largest) + "."
    return Section(title, body + notes_of([result]))


def count_lines(desk: Desk, intent: CountLines) -> Section:
    """How many lines or words files have."""
    files = intent.files
    if files.paths:
        return _count_named(desk, intent)
    kind = f"{files.kind} files" if files.kind else "files"
    counted = lines_of(desk, files)
    title = f"{intent.unit.capitalize()} of the {files.pick + ' of the ' if files.pick else ''}{kind}{where(files)}"
    if counted.problem is not None:
        return Section(title, failed(counted.problem, "count the lines"))
    path = counted.picked(files.pick) if files.pick else None
    if path is not None:
        if intent.unit != "lines":
            return _count_named(desk, CountLines(files=Files(paths=(path,)), unit=intent.unit))
        some = f" of the {len(counted.by_path):,} I could count" if counted.is_partial else ""
        said = f"The {files.pick} of the {kind}{where(files)}{some} is {shown(path, 200)}"
        return Section(title, f"{said} with {number(counted.by_path[path], 'line')}.{notes_of(counted.results)}")
    if not counted.by_path:
        return Section(title, f"There is no line in any of the {kind}{where(files)}.")
    longest = sorted(counted.by_path, key=lambda name: (-counted.by_path[name], name))[:5]
    body = (
        f"{counted.at_least()}{number(counted.total, 'line')} in "
        f"{counted.at_least()}{number(len(counted.by_path), f'{files.kind} file'.strip())}{where(files)}. The longest:\n\n"
    )
    if intent.unit != "lines":
        body = f"I count {intent.unit} only in files you name; in lines, it is this.\n\n{body}"
    names = [f"{path}: {number(counted.by_path[path], 'line')}" for path in longest]
    return Section(title, body + listed(names, 5) + notes_of(counted.results))


def _count_named(desk: Desk, intent: CountLines) -> Section:
    paths = intent.files.paths[:_MOST_FILES]
    title = f"{intent.unit.capitalize()} of {', '.join(shown(path, 80) for path in paths)}"
    bodies = []
    for asked, path, result in open_files(desk, paths, first=1, most=_READ):
        if not result.ok:
            bodies.append(failed(result, f"read {shown(asked, 100)}"))
            continue
        text, total = str(result.data.get("content", "")), result.data.get("total_lines")
        is_whole = result.number("lines") == total
        if intent.unit == "lines":
            amount = number(total, "line") if isinstance(total, int) else "more lines than I can count"
        else:
            amount = number(len(text.split()) if intent.unit == "words" else len(text), intent.unit.rstrip("s"))
            if not is_whole:
                amount = f"at least {amount} (in its first {number(result.number('lines'), 'line')})"
        bodies.append(f"{shown(path, 200)} has {amount}.")
    return Section(title, "\n".join(bodies))
