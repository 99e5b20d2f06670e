"""The changes that calls to write_file and edit_file are about to make, as diffs."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import attrs

from amplifier._internal.json import visible_text
from amplifier._internal.regular_files import read_file
from amplifier.contracts import current_call
from amplifier.contracts.questions import question_line
from amplifier.models import HookResult

CONTENT_ARGUMENTS: Final = ("content", "old_string", "new_string")
"""The arguments that a diff shows."""

_MAX_BYTES: Final = 200_000
_MAX_LINES: Final = 4_000


@attrs.frozen
class Edit:
    """One change to a file.

    Attributes:
        lines: The unified diff without its heading, safe to show.
        covers: The lines of a question of hooks-approval that the diff replaces.
        before: The former text of the file. None if the file doesn't exist or can't be read.
    """

    lines: list[str]
    covers: frozenset[str]
    before: str | None = None

    @property
    def counts(self) -> str:
        """The number of added and of removed lines."""
        added = sum(line[0] == "+" for line in self.lines)
        removed = sum(line[0] == "-" for line in self.lines)
        return f"+{added} -{removed}"


class Edits:
    """The edits by the running calls. An instance is a handler of ``tool:pre``.

    This event comes before every question and every change.

    Args:
        folder: The folder to which paths are relative. None for the working directory.
        keeps_first: True to keep the text of each file before its first edit, for `changes`.
    """

    def __init__(self, folder: Path | None = None, *, keeps_first: bool = False) -> None:
        self._folder = folder
        self._keeps_first = keeps_first
        self._by_call: dict[str, Edit] = {}
        self._calls: dict[str, tuple[str, dict[str, Any]]] = {}
        # This holds the text of each file before its first edit.
        self._before: dict[Path, str] = {}

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Read the file that a call is about to change."""
        arguments, call_id = data.get("tool_input"), data.get("tool_call_id")
        if isinstance(arguments, dict) and isinstance(call_id, str):
            self._calls[call_id] = (str(data.get("tool_name")), arguments)
            if data.get("tool_name") in ("write_file", "edit_file"):
                edit = await anyio.to_thread.run_sync(
                    _edit,
                    dict(arguments),
                    self._folder or Path.cwd(),
                    self._before if self._keeps_first else None,
                )
                if edit is not None:
                    self._by_call[call_id] = edit
        return HookResult()

    def find(self, call_id: str) -> Edit | None:
        """Return the edit by a call, or None."""
        return self._by_call.get(call_id)

    def current(self) -> Edit | None:
        """Return the edit by the call that the running code is part of, or None."""
        call = current_call()
        return None if call is None else self.find(call.call_id)

    def current_input(self) -> tuple[str, dict[str, Any]] | None:
        """Return the tool and the input of the call that the running code is part of, or None."""
        call = current_call()
        return None if call is None else self._calls.get(call.call_id)

    def changes(self) -> list[str]:
        """Return a unified diff of all edited files, safe to show."""
        lines: list[str] = []
        for path, before in self._before.items():
            try:
                now = read_file(path, most=_MAX_BYTES).decode()
            except FileNotFoundError:
                now = ""
            except (OSError, ValueError) as error:
                lines.append(visible_text(f"{path}: {error}", multiline=False))
                continue
            lines += _diff(before, now, name=str(path))
        return lines

    def clear(self) -> None:
        """Forget the calls of a turn that has ended."""
        self._calls.clear()
        self._by_call.clear()

    def pop(self, call_id: str) -> Edit | None:
        """Return the edit by a call that has ended, and forget it."""
        self._calls.pop(call_id, None)
        return self._by_call.pop(call_id, None)


def diff_style(line: str) -> str | None:
    """Return the colour of a line of a diff, or None."""
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])


def _edit(
    arguments: dict[str, Any], folder: Path, first: dict[Path, str] | None = None
) -> Edit | None:
    """Return the change that a call would make. None if the file isn't text or is too large."""
    texts = {
        name: arguments[name] for name in CONTENT_ARGUMENTS if isinstance(arguments.get(name), str)
    }
    path = arguments.get("file_path")
    if not texts or not isinstance(path, str):
        return None
    known, file = None, folder / path
    try:
        known = read_file(file, most=_MAX_BYTES).decode()
        before: str | None = known
    except FileNotFoundError:
        before = ""
    except (OSError, ValueError):
        # The file isn't regular, is too large or isn't UTF-8, or its name is invalid.
        before = None
        if "content" in texts:
            return None
    if before is not None and first is not None:
        first.setdefault(file, before)
    if "content" in texts:
        after = texts["content"]
    elif "old_string" not in texts or "new_string" not in texts:
        return None
    elif not before or texts["old_string"] not in before:
        before, after = (
            text.removesuffix("\n") + "\n" for text in (texts["old_string"], texts["new_string"])
        )
    else:
        count = -1 if arguments.get("replace_all") is True else 1
        after = before.replace(texts["old_string"], texts["new_string"], count)
    if (before or "").count("\n") + after.count("\n") > _MAX_LINES:
        return None
    shown = _diff(before or "", after)
    return Edit(shown, frozenset(question_line(name, text) for name, text in texts.items()), known)


def _diff(before: str, after: str, *, name: str | None = None) -> list[str]:
    """Return the lines of a unified diff, with a heading if it has a name."""
    names = ("", "") if name is None else (name, name)
    diff = difflib.unified_diff(_lines(before), _lines(after), *names)
    lines = [
        part for line in diff for part in (line.split("\n") if line[-1:] != "\n" else [line[:-1]])
    ]
    shown = [
        visible_text(line.replace("\t", "→   "), multiline=False, strict=True) for line in lines
    ]
    return shown[2:] if name is None else shown


def _lines(text: str) -> list[str]:
    """Return the lines of a file with their ends. git's remark follows a line without an end."""
    *whole, rest = text.split("\n")
    return [
        *(f"{line}\n" for line in whole),
        *([f"{rest}\n\\ No newline at end of file"] if rest else []),
    ]
