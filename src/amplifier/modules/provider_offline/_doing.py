"""Writing, changing, running, fetching: intents that act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amplifier.modules._tool_base import shown

from ._desk import Desk, Result
from ._intents import FetchPage, ReplaceText, RunCommand, Todo, WriteFile
from ._wording import Section, failed, fenced, listed, number

_OUTPUT_LINES = 30


def write_file(desk: Desk, intent: WriteFile, before: Sequence[Section]) -> Section:
    """Write a text, or what was found so far."""
    if intent.text is None and not before:
        return Section("Writing", "There is nothing to write yet: ask for something first, or give the text in quotes.")
    if not intent.path:
        note = "This answer is the report. To have it in a file, name one: write a report to report.md."
        return Section("", note)
    title = f"Writing {shown(intent.path, 100)}"
    text = report_of(before) if intent.text is None else intent.text
    result = desk.call("write_file", file_path=intent.path, content=text)
    if not result.ok:
        return Section(title, failed(result, f"write {shown(intent.path, 100)}"))
    path, size = result.data.get("file_path", intent.path), result.data.get("bytes", len(text.encode()))
    made = "Made" if result.data.get("created") else "Wrote"
    return Section(title, f"{made} {shown(str(path), 200)} with {number(int(size), 'byte')}.")


def report_of(sections: Sequence[Section]) -> str:
    """The answers so far as one text."""
    parts = [f"## {section.title}\n\n{section.body}" for section in sections]
    return "# Report\n\n" + "\n\n".join(parts) + "\n"


def replace_text(desk: Desk, intent: ReplaceText) -> Section:
    """Put one text in another's place."""
    title = f"Changing {shown(intent.path, 100)}"
    result = desk.call(
        "edit_file", file_path=intent.path, old_string=intent.old, new_string=intent.new, replace_all=True
    )
    if not result.ok:
        return Section(title, failed(result, f"change {shown(intent.path, 100)}"))
    done = number(result.number("replacements"), "place")
    return Section(title, f"Changed {shown(intent.path, 200)} in {done}.")


def run_command(desk: Desk, intent: RunCommand) -> Section:
    """Run a command and show what it said."""
    if not intent.command:
        return Section("Running", "I need the command itself, best in backticks: run `make test`.")
    title = f"Running `{shown(intent.command, 100)}`"
    result = desk.call("bash", command=intent.command)
    code = next((result.data[key] for key in ("exit_code", "returncode", "return_code") if key in result.data), None)
    said = _output(result)
    if not result.ok and not result.data:
        return Section(title, failed(result, "run it"))
    ended = "It ended well." if code == 0 else f"It ended with code {code}." if code is not None else ""
    return Section(title, f"{said or 'It said nothing. '}{ended}".strip())


def _output(result: Result) -> str:
    parts = []
    for key in ("stdout", "output", "stderr"):
        text = result.data.get(key)
        if isinstance(text, str) and text.strip():
            label = "On standard error:\n\n" if key == "stderr" else ""
            parts.append(label + fenced(text, lines=_OUTPUT_LINES) + "\n")
    return "\n".join(parts)


def fetch_page(desk: Desk, intent: FetchPage) -> Section:
    """Read a page of the web and show its beginning."""
    title = f"Fetching {shown(intent.url, 100)}"
    result = desk.call("web_fetch", url=intent.url)
    text: Any = next((result.data[key] for key in ("content", "text", "body") if result.data.get(key)), "")
    if not result.ok:
        return Section(title, failed(result, f"fetch {shown(intent.url, 100)}"))
    return Section(title, f"It begins:\n\n{fenced(str(text), lines=_OUTPUT_LINES)}" if text else "It is empty.")


def keep_todos(desk: Desk, intent: Todo) -> Section:
    """Show the list of todos, or add one to it."""
    title = "Todos"
    result = desk.call("todo", action="list")
    if result.ok and intent.text is not None:
        todos = [*result.objects("todos"), {"content": shown(intent.text, 500), "status": "pending"}]
        result = desk.call("todo", action="update", todos=[dict(todo) for todo in todos])
    if not result.ok:
        return Section(title, failed(result, "keep the list"))
    items = [f"{todo.get('content')} ({todo.get('status')})" for todo in result.objects("todos")]
    return Section(title, listed(items, 20) if items else "The list is empty.")
