"""Tool calls as an editor shows them: a title, a kind, files, a diff, the output.

The tools of this project are known by name; any other one is shown with its input and output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from amplifier._regular_file import read_file
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
_LARGEST_OLD_FILE = 512 * 1024
"""Bytes of a file that is about to be replaced; of a larger one no diff is shown."""


async def describe_call(tool: str, given: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Title, kind, locations, input and, for a change of a file, the diff."""
    described: dict[str, Any] = {
        "title": _title(tool, given),
        "kind": _KINDS.get(tool, "other"),
        "rawInput": dict(given),
    }
    if (absolute := _absolute(given.get("file_path"), directory)) is not None:
        described["locations"] = [{"path": str(absolute)}]
        if (diff := await _diff(tool, given, absolute)) is not None:
            described["content"] = [diff]
    return described


def _absolute(path: Any, directory: Path) -> Path | None:
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    try:
        return directory / Path(path).expanduser()
    except RuntimeError:  # the home directory of a user that does not exist
        return None


def _title(tool: str, given: Mapping[str, Any]) -> str:
    subject = next((given[key] for key in _TITLE_KEYS if isinstance(given.get(key), str) and given[key]), "")
    title = " ".join(f"{tool} {subject}".split())
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"


async def _diff(tool: str, given: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    if tool == "edit_file":
        old, new = given.get("old_string"), given.get("new_string")
    elif tool == "write_file":
        old, new = await anyio.to_thread.run_sync(_old_text, path), given.get("content")
    else:
        return None
    if not isinstance(new, str) or not isinstance(old, str | None):
        return None
    return {"type": "diff", "path": str(path), "oldText": old, "newText": new}


def _old_text(path: Path) -> str | bool | None:
    """The text of the file; None if there is no file, False if it cannot be shown."""
    try:
        return read_file(path, most=_LARGEST_OLD_FILE).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        return False


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
