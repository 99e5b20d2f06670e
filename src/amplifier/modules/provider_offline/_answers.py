"""How each kind of instruction is carried out.

An answer is a generator: it yields the tool calls that it needs, receives their results, and returns its text. `_reply` runs
it from the start for every request, with the results that the conversation holds by then, and reports calls that failed.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from .._tool_base import shown

_LISTED = 15
_LISTED_ENTRIES = 45
_SHOWN_LINES = 40
_COUNTED_LINES = 2_000
_LONGEST_BLOCK = 6_000
_HEADING = re.compile(r"^#{1,3} +(.+)$", re.MULTILINE)
_REGEX_CHARACTERS = re.compile(r"([\\.^$*+?{}\[\]|()])")


@attrs.frozen
class Tool:
    """What answers rely on in a built-in tool.

    Attributes:
        module: The module that mounts the tool.
        key: The field that a result must have.
        kind: The type of that field.
        changes: Whether a call may change something.
    """

    module: str
    key: str
    kind: type
    changes: bool = False


TOOLS: Mapping[str, Tool] = {
    "list_directory": Tool("tool-filesystem", "entries", list),
    "glob": Tool("tool-filesystem or tool-search", "paths", list),
    "grep": Tool("tool-search", "matches", list),
    "read_file": Tool("tool-filesystem", "content", str),
    "write_file": Tool("tool-filesystem", "bytes", int, changes=True),
    "edit_file": Tool("tool-filesystem", "replacements", int, changes=True),
    "bash": Tool("tool-bash", "stdout", str, changes=True),
    "web_fetch": Tool("tool-web", "content", str),
    "todo": Tool("tool-todo", "todos", list, changes=True),
}

Data: TypeAlias = Mapping[str, Any]


@attrs.frozen
class Call:
    """A tool call to make.

    Attributes:
        tool: One of `TOOLS`.
        arguments: The input of the tool.
        purpose: Completes "Could not …", should the call fail.
    """

    tool: str
    arguments: Data
    purpose: str


Answer: TypeAlias = Generator[Call, Data, str]


def list_directory(directory: str) -> Answer:
    """List the entries of one directory."""
    place = _place(directory)
    data = yield Call("list_directory", {"path": directory or "."}, f"list the files{place}")
    entries = [entry for entry in _objects(data, "entries") if not str(entry.get("name")).startswith(".")]
    hidden = len(_objects(data, "entries")) - len(entries)
    directories = [f"{entry.get('name')}/" for entry in entries if entry.get("type") == "directory"]
    files = [
        f"{entry.get('name')} ({_number(entry.get('size'), 'byte')})"
        for entry in entries
        if entry.get("type") == "file"
    ]
    others = [
        f"{entry.get('name')} ({entry.get('type')})"
        for entry in entries
        if entry.get("type") not in ("directory", "file")
    ]
    text = f"{_number(len(directories), 'directory', 'directories')} and {_number(len(files), 'file')}{place}:"
    text += f"\n\n{_listed(directories + files + others, _LISTED_ENTRIES)}"
    return text + (f"\n\n{_number(hidden, 'hidden entry', 'hidden entries')} left out." if hidden else "") + _note(data)


def find_files(kind: str, pattern: str, directory: str, *, is_listed: bool) -> Answer:
    """Count the files of a kind at any depth, and list them if asked to."""
    # Not below hidden directories at the top: caches and environments are there.
    top = "[!.]*" if pattern == "*" else pattern
    arguments = {"pattern": f"{{{top},[!.]*/**/{pattern}}}", "path": directory or "."}
    place = _place(directory)
    data = yield Call("glob", arguments, f"look for files{place}")
    paths = [path for path in data["paths"] if isinstance(path, str) and not path.endswith("/")]
    visible = [path for path in paths if _is_visible(path, directory)]
    verb = "is" if len(visible) == 1 else "are"
    counted = f"There {verb} {_at_least(data)}{_number(len(visible), f'{kind} file'.strip())}{place}"
    remark = f"Hidden files are left out, and links count as files.{_note(data)}"
    if is_listed and visible:
        return f"{counted}:\n\n{_listed(visible, _LISTED)}\n\n{remark}"
    return f"{counted}. {remark}"


def find_text(wanted: str, place: str) -> Answer:
    """Find the lines that contain a text."""
    subject = f"“{shown(wanted, 80)}”"
    where = f" in {shown(place, 100)}" if place else ""
    arguments = {"pattern": _REGEX_CHARACTERS.sub(r"\\\1", wanted), "path": place or ".", "output_mode": "content"}
    if not place:
        arguments["glob"] = "[!.]*/**"  # matches in hidden directories would use up the tool's limit
    data = yield Call("grep", arguments, f"search for {subject}{where}")
    matches = _objects(data, "matches")
    visible = [match for match in matches if _is_visible(str(match.get("file_path")), place)]
    remark = " Hidden files are left out." if not place or len(visible) < len(matches) else ""
    if not visible:
        searched = _number(data.get("files_searched"), "file")
        return f"{subject} is in no line{where}; {searched} searched.{remark}{_note(data)}"
    counted = f"{_at_least(data)}{_number(len(visible), 'line')}"
    lines = []
    for match in visible:
        text = str(match.get("text")).strip().replace("`", "'")
        lines.append(f"{match.get('file_path')}:{match.get('line')}: `{shown(text, 120)}`")
    return f"{subject} is in {counted}{where}.{remark}\n\n{_listed(lines, _LISTED)}{_note(data)}"


def read_file(path: str) -> Answer:
    """Show the first lines of a file."""
    data = yield _read(path, _SHOWN_LINES)
    lines, total = len(data["content"].splitlines()), data.get("total_lines")
    part = "" if lines == total else f"; here are the first {lines}"
    return f"{shown(path, 200)} has {_number(total, 'line')}{part}:\n\n{_fenced(data['content'])}"


def count_lines(path: str) -> Answer:
    """Count the lines of a file."""
    data = yield _read(path, _COUNTED_LINES)
    return f"{shown(path, 200)} has {_number(data.get('total_lines'), 'line')}."


def summarise_file(path: str) -> Answer:
    """Describe a file by numbers, its headings and its first words."""
    data = yield _read(path, _COUNTED_LINES)
    content, total = data["content"], data.get("total_lines")
    lines = len(content.splitlines())
    text = f"{shown(path, 200)} has {_number(total, 'line')}"
    text += "," if lines == total else f". Its first {lines:,} have"
    text += f" {_number(len(content.split()), 'word')} and {_number(len(content), 'character')}."
    headings = [shown(heading.strip(), 100) for heading in _HEADING.findall(content)] if path.endswith(".md") else []
    if headings:
        text += f"\n\n{_number(len(headings), 'heading')}:\n\n{_listed(headings, _LISTED)}"
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", content))
    first = next((words for words in paragraphs if words and not words.startswith("#")), "")
    return text + (f"\n\nIt begins: {shown(first, 300)}" if first else "")


def write_file(path: str, text: str) -> Answer:
    """Write a text to a file."""
    data = yield Call("write_file", {"file_path": path, "content": text}, f"write {shown(path, 100)}")
    made = "Made" if data.get("created") else "Wrote"
    return f"{made} {shown(path, 200)} with {_number(data['bytes'], 'byte')}."


def replace_text(path: str, old: str, new: str) -> Answer:
    """Replace a text in a file wherever it occurs."""
    arguments = {"file_path": path, "old_string": old, "new_string": new, "replace_all": True}
    data = yield Call("edit_file", arguments, f"change {shown(path, 100)}")
    return f"Changed {shown(path, 200)} in {_number(data['replacements'], 'place')}."


def run_command(command: str) -> Answer:
    """Run a shell command and show its output."""
    data = yield Call("bash", {"command": command}, "run it and read its result")
    output, errors = data["stdout"], str(data.get("stderr") or "")
    parts = [_fenced(output)] if output.strip() else []
    parts += [f"On standard error:\n\n{_fenced(errors)}"] if errors.strip() else []
    code = data.get("returncode")
    parts.append(f"It ended with code {code}." if isinstance(code, int) else "The tool reported no exit code.")
    return "\n\n".join(parts) + _note(data)


def fetch_page(url: str) -> Answer:
    """Fetch a web page and show its beginning."""
    data = yield Call("web_fetch", {"url": url}, f"fetch {shown(url, 100)}")
    status = data.get("status")
    text = f"The server answered with status {status}" if isinstance(status, int) else "The server answered"
    return f"{text}:\n\n{_fenced(data['content'])}{_note(data)}"


def show_todos() -> Answer:
    """Show the todo list."""
    data = yield Call("todo", {"action": "list"}, "read the todo list")
    return _todo_lines(data)


def add_todo(text: str) -> Answer:
    """Add an entry to the todo list, which the tool can only replace as a whole."""
    data = yield Call("todo", {"action": "list"}, "read the todo list")
    todos = [*map(dict, _objects(data, "todos")), {"content": text, "status": "pending"}]
    data = yield Call("todo", {"action": "update", "todos": todos}, "change the todo list")
    return _todo_lines(data)


def _todo_lines(data: Data) -> str:
    items = [f"{todo.get('content')} ({todo.get('status')})" for todo in _objects(data, "todos")]
    return _listed(items, _LISTED_ENTRIES) if items else "The todo list is empty."


def _read(path: str, limit: int) -> Call:
    return Call("read_file", {"file_path": path, "offset": 1, "limit": limit}, f"read {shown(path, 100)}")


def _is_visible(path: str, named: str) -> bool:
    """Whether no part of a path is hidden, apart from the parts that the user named."""
    return all(part in named.split("/") for part in path.split("/") if part.startswith("."))


def _place(directory: str) -> str:
    return f" in {shown(directory, 100)}" if directory else " in the working directory"


def _number(amount: object, noun: str, plural: str = "") -> str:
    """``1,234 lines``, ``1 line``; a tool may not report the amount."""
    plural = plural or f"{noun}s"
    return (
        f"{amount:,} {noun if amount == 1 else plural}" if isinstance(amount, int) else f"an unknown number of {plural}"
    )


def _at_least(data: Data) -> str:
    return "at least " if data.get("truncated") else ""


def _note(data: Data) -> str:
    """The tool's own note on what it left out."""
    note = data.get("note")
    return f"\n\nNote: {shown(note, 300)}." if isinstance(note, str) and note else ""


def _listed(items: Sequence[str], most: int) -> str:
    more = [f"… and {len(items) - most:,} more"] if len(items) > most else []
    return "\n".join(f"- {item}" for item in [*items[:most], *more])


def _fenced(text: str) -> str:
    """A code block with the first lines of a text; its fence is longer than any in the text."""
    lines = text.splitlines()
    kept = "\n".join(lines[:_SHOWN_LINES])[:_LONGEST_BLOCK]
    fence = "```"
    while fence in kept:
        fence += "`"
    is_cut = len(lines) > _SHOWN_LINES or len(kept) == _LONGEST_BLOCK
    return f"{fence}\n{kept}\n{fence}" + ("\n(the rest is not shown)" if is_cut else "")


def _objects(data: Data, key: str) -> list[Data]:
    return [item for item in data[key] if isinstance(item, dict)]
