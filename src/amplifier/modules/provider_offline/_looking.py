"""Listing, reading and finding: intents that only look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from amplifier.modules._tool_base import shown

from ._desk import Desk, Result, Wanted
from ._gathering import LEFT_OUT, below, gather, is_seen, searched, where
from ._intents import Files, FindFile, FindText, ListFiles, ReadFiles
from ._subjects import WELL_KNOWN
from ._wording import Section, failed, fenced, listed, notes_of, number

_SHOWN = 15
_LINES = 40
_FEW_LINES = 12
_MOST_LINES = 200
_MOST_FILES = 4
_SPECIAL = re.compile(r"([\\.^$*+?{}\[\]|()])")


def list_files(desk: Desk, intent: ListFiles) -> Section:
    """Which files are there."""
    files = intent.files
    if files.kind or intent.is_deep:
        return _list_deep(desk, files)
    title = f"Files{where(files)}"
    result = desk.call("list_directory", path=files.directory)
    if not result.ok:
        return Section(title, failed(result, f"list {shown(files.directory, 100)}"))
    hidden = [_named(entry) for entry in result.objects("entries") if str(entry.get("name")).startswith(".")]
    entries = [entry for entry in result.objects("entries") if not str(entry.get("name")).startswith(".")]
    folders = [_named(entry) for entry in entries if entry.get("type") == "directory"]
    regular = [_named(entry) for entry in entries if entry.get("type") == "file"]
    others = [_named(entry) for entry in entries if entry.get("type") not in ("directory", "file")]
    counts = [number(len(folders), "directory", "directories"), number(len(regular), "file")]
    if others:
        counts.append(number(len(others), "other (link or pipe)", "others (links or pipes)"))
    body = f"{', '.join(counts[:-1])} and {counts[-1]}{where(files) or ' in the working directory'}:"
    body += f"\n\n{listed(folders + regular + others, 3 * _SHOWN)}"
    if hidden:
        body += (
            f"\n\nHidden, and left out of counts and searches: {', '.join(shown(name, 80) for name in hidden[:_SHOWN])}"
        )
        body += f" and {len(hidden) - _SHOWN:,} more." if len(hidden) > _SHOWN else "."
    return Section(title, body + notes_of([result]))


def _list_deep(desk: Desk, files: Files) -> Section:
    title = f"{files.kind or 'All'} files{where(files)}"
    found = gather(desk, files)
    if not found.result.ok:
        return Section(title, failed(found.result, "look for files"))
    kind = f"{files.kind} file".strip()
    body = f"There are no {kind}s{where(files)}."
    if found.paths:
        body = f"{found.at_least()}{number(len(found.paths), kind)}{where(files)}:\n\n{listed(found.paths, _SHOWN)}\n"
    return Section(title, f"{body}\n{LEFT_OUT}{found.remark()}{notes_of([found.result])}")


def _named(entry: Mapping[str, Any]) -> str:
    name = str(entry.get("name"))
    return f"{name}/" if entry.get("type") == "directory" else _entry(name, entry.get("size"))


def _entry(name: str, size: object) -> str:
    return f"{name} ({number(size, 'byte')})" if isinstance(size, int) else name


def read_files(desk: Desk, intent: ReadFiles, *, is_alone: bool) -> Section:
    """What files say; less of it where it is one answer among others."""
    title = f"Reading {', '.join(shown(path, 80) for path in intent.files.paths[:_MOST_FILES])}"
    most = min(intent.most or (_LINES if is_alone else _FEW_LINES), _MOST_LINES)
    read = open_files(desk, intent.files.paths[:_MOST_FILES], first=intent.first, most=most)
    bodies = []
    for asked, path, begun in read:
        first, result = _end_of(desk, path, begun, most) if intent.is_end else (intent.first, begun)
        if not result.ok:
            bodies.append(failed(result, f"read {shown(asked, 100)}"))
            continue
        text, lines, total = str(result.data.get("content", "")), result.number("lines"), result.data.get("total_lines")
        size = f"{number(total, 'line')}" if isinstance(total, int) else "very many lines"
        here = f"; here are lines {first} to {first + lines - 1}" if lines > 1 else f"; here is line {first}"
        part = "" if lines == total else here if lines else "; none of them there"
        bodies.append(f"{shown(path, 200)} has {size}{part}:\n\n{fenced(text, lines=_MOST_LINES)}")
    if len(intent.files.paths) > _MOST_FILES:
        bodies.append(f"I read {_MOST_FILES} files at a time; ask again for the others.")
    return Section(title, "\n\n".join(bodies))


def _end_of(desk: Desk, path: str, begun: Result, most: int) -> tuple[int, Result]:
    """The last lines of a file of which the first were read, and the number of the first of them."""
    total = begun.data.get("total_lines")
    if not begun.ok or begun.number("lines") == total:
        return 1, begun
    if not isinstance(total, int):
        return 1, Result(text="it has more lines than I can count, so I do not know which are the last", ok=False)
    first = max(1, total - most + 1)
    return first, desk.call("read_file", file_path=path, offset=first, limit=most)


def open_files(desk: Desk, asked: tuple[str, ...], *, first: int, most: int) -> list[tuple[str, str, Result]]:
    """Read files; of those not found where they were said to be, the nearest of that name.

    Returns:
        For each what was asked for, the path that was read, and the result.
    """
    paths = _spelled_out(desk, asked)
    wanted = [Wanted("read_file", {"file_path": path, "offset": first, "limit": most}) for path in paths]
    results = desk.calls(*wanted)
    lost = [at for at, result in enumerate(results) if not result.ok and _may_be_elsewhere(desk, paths[at])]
    patterns = [f"**/{_literal_glob(paths[at].rpartition('/')[2])}" for at in lost]
    found = desk.calls(*(Wanted("glob", {"pattern": pattern}) for pattern in patterns)) if lost else []
    again = {at: names[0] for at, result in zip(lost, found, strict=True) if (names := _nearest(result))}
    second = desk.calls(
        *(Wanted("read_file", {"file_path": path, "offset": first, "limit": most}) for path in again.values())
    )
    for (at, path), result in zip(again.items(), second, strict=True):
        if result.ok:
            paths[at], results[at] = path, result
    return list(zip(asked, paths, results, strict=True))


def _spelled_out(desk: Desk, asked: tuple[str, ...]) -> list[str]:
    """``README`` as the file of that name with whatever ending it has."""
    bare = [path for path in asked if re.fullmatch(rf"(?:.*/)?(?:{WELL_KNOWN})", path)]
    if not bare or not desk.offers("glob"):
        return list(asked)
    found = desk.calls(*(Wanted("glob", {"pattern": f"{path}*"}) for path in bare))
    endings = {path: names[0] for path, result in zip(bare, found, strict=True) if (names := _nearest(result))}
    return [endings.get(path, path) for path in asked]


def _nearest(result: Result) -> list[str]:
    names = [path for path in result.texts("paths") if not path.endswith("/")]
    return sorted(names, key=lambda path: (path.count("/"), len(path), path))


def _may_be_elsewhere(desk: Desk, path: str) -> bool:
    name = path.rpartition("/")[2]
    return desk.offers("glob") and desk.offers("read_file") and bool(name) and ".." not in path and path[0] not in "/~"


def _literal_glob(name: str) -> str:
    return re.sub(r"([*?\[\]{}])", "?", name)[:200]


def find_text(desk: Desk, intent: FindText) -> Section:
    """Where a text stands, or how often."""
    files = intent.files
    subject = f"“{shown(intent.text, 80)}”"
    target = files.paths[0] if files.paths else files.directory
    place = f" in {shown(target, 100)}" if files.paths else where(files)
    arguments = {
        "pattern": _SPECIAL.sub(r"\\\1", intent.text),
        "path": target,
        "ignore_case": intent.text.islower(),
        "output_mode": "count" if intent.only_count else "content",
        **({} if files.paths else {"glob": searched(files)}),
    }
    result = desk.call("grep", **arguments)
    title = f"{subject}{place}"
    if not result.ok:
        return Section(title, failed(result, f"search for {subject}"))
    more = "at least " if result.data.get("truncated") else ""
    if intent.only_count:
        found = {str(item.get("file_path")): item.get("count") for item in result.objects("counts")}
        counts = [count for path, count in found.items() if isinstance(count, int) and _is_meant(path, files)]
        body = f"{subject} stands in {more}{number(sum(counts), 'line')} of {more}{number(len(counts), 'file')}{place}."
        return Section(title, body + ("" if files.paths else f" {LEFT_OUT}") + notes_of([result]))
    matches = [match for match in result.objects("matches") if _is_meant(str(match.get("file_path")), files)]
    if not matches:
        looked_at = number(result.number("files_searched"), "file")
        return Section(title, f"{subject} stands nowhere{place}; {looked_at} searched.{notes_of([result])}")
    in_files = len({match.get("file_path") for match in matches})
    lines = [f"{m.get('file_path')}:{m.get('line')}: `{_code(str(m.get('text', '')))}`" for m in matches]
    body = f"{subject} stands in {more}{number(len(matches), 'line')} of {number(in_files, 'file')}{place}:"
    return Section(title, f"{body}\n\n{listed(lines, _SHOWN)}{notes_of([result])}")


def _is_meant(path: str, files: Files) -> bool:
    return bool(files.paths) or is_seen(path, files)


def _code(text: str) -> str:
    return shown(text.strip().replace("`", "'"), 120)


def find_file(desk: Desk, intent: FindFile) -> Section:
    """Where files of a name are."""
    name = intent.name.strip("/") or "*"
    files = Files(pattern=name, directory=intent.directory)
    result = desk.call("glob", pattern=below(files), path=intent.directory)
    title = f"Files named {shown(name, 80)}"
    if not result.ok:
        return Section(title, failed(result, f"look for {shown(name, 80)}"))
    paths = [path for path in result.texts("paths") if not path.endswith("/") and is_seen(path, files)]
    found = f"{number(len(paths), 'file')} of that name:\n\n{listed(paths, _SHOWN)}" if paths else "No such file here."
    return Section(title, found + notes_of([result]))
