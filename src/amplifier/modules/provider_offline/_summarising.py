"""Summaries by numbers: of a directory, and of a file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from amplifier.modules._tool_base import shown

from ._counting import Lines, lines_of
from ._desk import Desk, Result
from ._gathering import LEFT_OUT, gather, where
from ._intents import Files, Summarise
from ._looking import open_files
from ._subjects import KINDS
from ._wording import Section, failed, listed, notes_of, number, table

_MOST_KINDS = 8
_MOST_FILES = 4
_READ = 2_000
_HEADING = re.compile(r"^#{1,3} +(.+)$", re.MULTILINE)
_DEFINED = re.compile(r"^(?:async )?(def|class) +(\w+)", re.MULTILINE)
_DOTTED_KINDS: Mapping[str, str] = {
    ending: name
    for name, pattern in KINDS.values()
    if pattern.startswith("*.")
    for ending in pattern[2:].strip("{}").split(",")
    if name != "documentation"
}


def summarise(desk: Desk, intent: Summarise) -> Section:
    """What it is, in numbers."""
    files = intent.files
    if files.pick:
        counted = lines_of(desk, files)
        path = counted.picked(files.pick)
        if path is None:
            problem = counted.problem or Result(text="there are none", ok=False)
            return Section("Summary", failed(problem, f"find the {files.pick} file"))
        return _summary_of_files(desk, (path,))
    if files.paths and not (len(files.paths) == 1 and _is_directory(files.paths[0])):
        return _summary_of_files(desk, files.paths[:_MOST_FILES])
    if files.paths:
        files = Files(directory=files.paths[0].rstrip("/") or "/")
    return _summary_of_directory(desk, files)


def _is_directory(path: str) -> bool:
    return path.endswith("/") or ("/" in path and "." not in path.rpartition("/")[2])


# ── a directory ──────────────────────────────────────────────────────────────────────────────────


def _summary_of_directory(desk: Desk, files: Files) -> Section:
    title = f"Summary{where(files) or ' of the working directory'}"
    found = gather(desk, files)
    listing, paths = found.result, list(found.paths)
    if not listing.ok:
        return Section(title, failed(listing, "look for files"))
    if not paths:
        return Section(title, f"There are no {files.kind} files{where(files)}.{notes_of([listing])}")
    counted = lines_of(desk, files)
    folders = {path.rpartition("/")[0] for path in paths}
    place = where(files) or " in the working directory"
    lines = "" if counted.problem else f", {counted.at_least()}{number(counted.total, 'line')} of text"
    kind, places = f"{files.kind} file".strip(), number(len(folders), "directory", "directories")
    body = f"{found.at_least()}{number(len(paths), kind)} in {places}{place}{lines}. {LEFT_OUT}{found.remark()}"
    body += f"\n\n{_kinds(paths, counted)}"
    if counted.by_path:
        longest = sorted(counted.by_path, key=lambda path: (-counted.by_path[path], path))[:5]
        names = [f"{path}: {number(counted.by_path[path], 'line')}" for path in longest]
        body += f"\n\nThe longest files:\n\n{listed(names, 5)}"
    if counted.problem is not None:
        body += f"\n\n{failed(counted.problem, 'count lines')}"
    return Section(title, body + _of_itself(desk, files, paths) + notes_of([listing, *counted.results]))


def _kinds(paths: list[str], counted: Lines) -> str:
    kinds: dict[str, list[str]] = {}
    for path in paths:
        name = path.rpartition("/")[2]
        ending = name.rpartition(".")[2] if "." in name[1:] else ""
        kinds.setdefault(ending.lower(), []).append(path)
    order = sorted(kinds, key=lambda ending: (-len(kinds[ending]), ending))
    rows = []
    for ending in order[:_MOST_KINDS]:
        name = f"{_DOTTED_KINDS.get(ending, 'other')} (.{ending})" if ending else "without an ending"
        lines = sum(counted.by_path.get(path, 0) for path in kinds[ending])
        rows.append({"kind": name, "files": len(kinds[ending]), **({} if counted.problem else {"lines": lines})})
    left = sum(len(kinds[ending]) for ending in order[_MOST_KINDS:])
    return table(rows) + (f"\n\nand {number(left, 'file')} of other kinds." if left else "")


def _of_itself(desk: Desk, files: Files, paths: list[str]) -> str:
    """The first words of its README, if there is one at the top."""
    base = "" if files.directory in (".", "./") else files.directory.removeprefix("./").rstrip("/") + "/"
    names = sorted(path for path in paths if re.fullmatch(rf"{re.escape(base)}readme(\.\w+)?", path, re.IGNORECASE))
    if not names or not desk.offers("read_file"):
        return ""
    result = desk.call("read_file", file_path=names[0], offset=1, limit=30)
    if not result.ok:
        return ""
    heading, words = _opening(str(result.data.get("content", "")))
    said = " — ".join(part for part in (heading, words) if part)
    return f"\n\nIts {shown(names[0], 80)} begins: {said}" if said else ""


def _opening(text: str) -> tuple[str, str]:
    heading = _HEADING.search(text)
    for paragraph in re.split(r"\n\s*\n", text):
        words = " ".join(paragraph.split())
        if words and words[0] not in "#[!<|`=-":
            return (shown(heading[1].strip(), 120) if heading else ""), shown(words, 300)
    return (shown(heading[1].strip(), 120) if heading else ""), ""


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def _summary_of_files(desk: Desk, paths: tuple[str, ...]) -> Section:
    title = f"Summary of {', '.join(shown(path, 80) for path in paths)}"
    bodies = []
    for asked, path, result in open_files(desk, paths, first=1, most=_READ):
        bodies.append(_file(path, result) if result.ok else failed(result, f"read {shown(asked, 100)}"))
    return Section(title, "\n\n".join(bodies))


def _file(path: str, result: Result) -> str:
    text, total = str(result.data.get("content", "")), result.data.get("total_lines")
    part = "" if result.number("lines") == total else f" (numbers below are of its first {result.number('lines'):,})"
    lines = number(total, "line") if isinstance(total, int) else "very many lines"
    blank = sum(not line.strip() for line in text.split("\n")[: result.number("lines")])
    facts = [
        f"{shown(path, 200)} has {lines}{part}",
        f"{number(len(text.split()), 'word')} and {number(len(text), 'character')}",
        f"{number(blank, 'blank line')}",
    ]
    body = ", ".join(facts) + "."
    if path.endswith((".md", ".rst")) and (headings := [shown(h.strip(), 100) for h in _HEADING.findall(text)]):
        body += f"\n\n{number(len(headings), 'heading')}:\n\n{listed(headings, 10)}"
    if path.endswith(".py") and (defined := _DEFINED.findall(text)):
        names = [f"{word} {name}" for word, name in defined]
        body += f"\n\n{number(len(names), 'definition')} at its top level:\n\n{listed(names, 10)}"
    heading, words = _opening(text)
    if words and not path.endswith(".py"):
        body += f"\n\nIt begins: {heading + ' — ' if heading else ''}{words}"
    return body
