"""Tool calls as an editor shows them: a title, a kind, files, a diff, the output.

The tools of this project are known by name; any other one is shown with its input and output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from amplifier.live._edits import Edit
from amplifier.turns import error_text

PLAN_TOOL: Final = "todo"
"""Its list is shown as the agent's plan."""

_KINDS: Final = {
    "read_file": "read",
    "list_directory": "read",
    "glob": "search",
    "grep": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "bash": "execute",
    "web_fetch": "fetch",
    "web_search": "fetch",
    PLAN_TOOL: "think",
}

_OUTPUTS: Final = {"bash": ("stdout", "stderr"), "read_file": ("content",)}
"""Members of an output that are the text a person wants to see."""

_TITLE_KEYS: Final = ("command", "file_path", "path", "pattern", "url", "query", "instruction")
_LONGEST_TITLE = 120
_LONGEST_TEXT = 50_000


def describe_call(tool: str, given: Mapping[str, Any], directory: Path, edit: Edit | None) -> dict[str, Any]:
    """Title, kind, locations, input and, for a change of a file, the diff."""
    described: dict[str, Any] = {
        "title": _title(tool, given),
        "kind": _KINDS.get(tool, "other"),
        "rawInput": dict(given),
    }
    path = given.get("file_path")
    if isinstance(path, str) and path and "\0" not in path:
        absolute = str(directory / path)
        described["locations"] = [{"path": absolute}]
        old = new = None
        if tool == "edit_file":
            old, new = given.get("old_string"), given.get("new_string")
        elif edit is not None:
            old, new = edit.before, given.get("content")
        if isinstance(new, str) and isinstance(old, str | None):
            described["content"] = [{"type": "diff", "path": absolute, "oldText": old, "newText": new}]
    return described


def _title(tool: str, given: Mapping[str, Any]) -> str:
    subject = next((given[key] for key in _TITLE_KEYS if isinstance(given.get(key), str) and given[key]), "")
    title = " ".join(f"{tool} {subject}".split())
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"


def describe_result(tool: str, result: Any, *, has_diff: bool) -> dict[str, Any]:
    """The output, for a call that is over; a diff that the call shows is not replaced by a successful result."""
    result = result if isinstance(result, Mapping) else {"output": result}
    output, error = result.get("output"), result.get("error")
    described: dict[str, Any] = {"rawOutput": output if error is None else {"output": output, "error": error}}
    if not (has_diff and error is None):
        text = _as_block(output, _OUTPUTS[tool]) if tool in _OUTPUTS else None
        if text is None:
            shown = "" if output is None else output
            text = shown if isinstance(shown, str) else json.dumps(shown, indent=2, default=str)
        if error is not None:
            text = "\n".join(filter(None, [text, f"Error: {error_text(error)}"]))
        described["content"] = (
            [{"type": "content", "content": {"type": "text", "text": _shortened(text)}}] if text else []
        )
    return described


def _as_block(output: Any, members: tuple[str, ...]) -> str | None:
    """What a command wrote or a file has, in a code block that its own text cannot close."""
    if not isinstance(output, dict) or not any(name in output for name in members):
        return None
    text = "".join(str(output.get(name) or "") for name in members).rstrip("\n")
    if not text:
        return ""
    fence = "```"
    while fence in text:
        fence += "`"
    language = "console" if "stdout" in members else ""
    return f"{fence}{language}\n{_shortened(text)}\n{fence}"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters are not shown …\n{text[-half:]}"


def plan_entries(given: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The list of a successful call of the todo tool, as entries of the agent's plan."""
    todos = given.get("todos")
    if not isinstance(todos, list):
        return None
    return [
        {"content": str(todo.get("content") or ""), "priority": "medium", "status": todo.get("status") or "pending"}
        for todo in todos
        if isinstance(todo, dict)
    ]
