"""Counting files, lines and words, and choosing the longest."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from amplifier.modules._tool_base import shown

from ._desk import Desk, Result, Wanted
from ._gathering import LEFT_OUT, below, gather, is_seen, kinds_of, searched, where
from ._intents import CountFiles, CountLines, Files
from ._looking import open_files
from ._wording import Section, failed, listed, notes_of, number, there_are

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
        by_path: Each file's number.
        results: What they were taken from.
        without_empty: Whether files without a line may be missing.
        is_partial: Whether there are more files than were counted.
        problem: Why there is nothing, if so.
    """

    by_path: dict[str, int] = attrs.field(factory=dict)
    results: Sequence[Result] = ()
    without_empty: bool = False
    is_partial: bool = False
    problem: Result | None = None

    @property
    def total(self) -> int:
        """All of them together."""
        return sum(self.by_path.values())

    def at_least(self) -> str:
        """Words to put before a number."""
        return "at least " if self.is_partial else ""

    def remark(self) -> str:
        """A sentence on what may be missing."""
        return " Files without a line may not be among them." if self.without_empty else ""

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
        counted = _together([_search(base, searched(files))], desk, is_partial=False)
        by_path = {path: n for path, n in counted.by_path.items() if is_seen(path, files)}
        return attrs.evolve(counted, by_path=by_path, without_empty=True)
    listing = desk.call("glob", pattern=pattern, path=base)
    if not listing.ok:
        return Lines(problem=listing)
    paths = [path for path in listing.texts("paths") if not path.endswith("/")]
    # Hidden files count here, since a search answers for them as well.
    is_small = len(paths) <= _FILES_PER_SEARCH
    patterns = [searched(files)] if is_small else _packed(_parts(paths, base), files)
    is_partial = bool(listing.data.get("truncated")) or len(patterns) > _MOST_SEARCHES
    searches = [_search(base, packed) for packed in patterns[:_MOST_SEARCHES]]
    counted = _together(searches, desk, is_partial=is_partial)
    return counted if counted.problem else _with_empty_ones(desk, counted, [p for p in paths if is_seen(p, files)])


def _with_empty_ones(desk: Desk, counted: Lines, paths: list[str]) -> Lines:
    """Only the files that are meant, and those of them that have no line: a search does not name these."""
    silent = [path for path in paths if path not in counted.by_path]
    kinds = kinds_of(desk, silent)
    by_path = {path: counted.by_path[path] for path in paths if path in counted.by_path}
    by_path |= {path: 0 for path in silent if kinds.get(path) == ("file", 0)}
    return attrs.evolve(counted, by_path=by_path, without_empty=any(path not in kinds for path in silent))


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
    """Directories and single files that together hold all paths, and how many each; each fits into one search."""
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
    """How many files there are, or directories."""
    files = intent.files
    if intent.are_directories:
        return _count_directories(desk, files)
    title = f"Number of {files.kind + ' ' if files.kind else ''}files{where(files)}"
    found = gather(desk, files)
    if not found.result.ok:
        return Section(title, failed(found.result, "count the files"))
    folders: dict[str, int] = {}
    for path in found.paths:
        top = _top(path, files.directory) or "at the top"
        folders[top] = folders.get(top, 0) + 1
    place = where(files) or " in the working directory"
    body = f"{there_are(len(found.paths), f'{files.kind} file'.strip(), at_least=found.at_least())}{place}."
    if len(folders) > 1:
        largest = sorted(folders, key=lambda top: (-folders[top], top))[:4]
        body += " Most of them: " + ", ".join(f"{shown(top, 80)} ({folders[top]:,})" for top in largest) + "."
    return Section(title, f"{body} {LEFT_OUT}{found.remark()}{notes_of([found.result])}")


def _count_directories(desk: Desk, files: Files) -> Section:
    title = f"Number of directories{where(files)}"
    result = desk.call("glob", pattern=below(files), path=files.directory)
    if not result.ok:
        return Section(title, failed(result, "count the directories"))
    count = sum(path.endswith("/") and is_seen(path, files) for path in result.texts("paths"))
    more = "at least " if result.data.get("truncated") else ""
    place = where(files) or " in the working directory"
    said = there_are(count, "directory", "directories", at_least=more)
    return Section(title, f"{said}{place}, at any depth. {LEFT_OUT}{notes_of([result])}")


def count_lines(desk: Desk, intent: CountLines) -> Section:
    """How many lines or words files have."""
    files = intent.files
    if files.paths:
        return _count_named(desk, intent)
    kind = f"{files.kind} files" if files.kind else "files"
    counted = lines_of(desk, files)
    title = f"{intent.unit.capitalize()} of the {files.pick + ' of the ' if files.pick else ''}{kind}{where(files)}"
    if counted.problem is not None:
        named = None if files.kind or files.pick or not where(files) else _read_instead(desk, intent)
        return named or Section(title, failed(counted.problem, "count the lines"))
    path = counted.picked(files.pick) if files.pick else None
    if path is not None:
        if intent.unit != "lines":
            return _count_named(desk, CountLines(files=Files(paths=(path,)), unit=intent.unit))
        some = f" of the {len(counted.by_path):,} I could count" if counted.is_partial else ""
        said = f"The {files.pick} of the {kind}{where(files)}{some} is {shown(path, 200)}"
        return Section(
            title, f"{said} with {number(counted.by_path[path], 'line')}.{counted.remark()}{notes_of(counted.results)}"
        )
    if not counted.total:
        return Section(
            title, f"There is no line in any of the {kind}{where(files)}. {LEFT_OUT}{notes_of(counted.results)}"
        )
    longest = sorted(counted.by_path, key=lambda name: (-counted.by_path[name], name))[:5]
    body = (
        f"{counted.at_least()}{number(counted.total, 'line')} in "
        f"{counted.at_least()}{number(len(counted.by_path), f'{files.kind} file'.strip())}{where(files)}. The longest:\n\n"
    )
    if intent.unit != "lines":
        body = f"I count {intent.unit} only in files you name; in lines, it is this.\n\n{body}"
    names = [f"{path}: {number(counted.by_path[path], 'line')}" for path in longest]
    return Section(title, f"{body}{listed(names, 5)}\n\n{LEFT_OUT}{counted.remark()}{notes_of(counted.results)}")


def _read_instead(desk: Desk, intent: CountLines) -> Section | None:
    """What was taken for a directory as a file: a name such as ``.env`` may be either."""
    path = intent.files.directory
    if not desk.offers("read_file") or not desk.call("read_file", file_path=path, offset=1, limit=_READ).ok:
        return None
    return _count_named(desk, attrs.evolve(intent, files=Files(paths=(path,))))


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
