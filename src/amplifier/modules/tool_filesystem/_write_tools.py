"""write_file and edit_file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import anyio

from amplifier.contracts import Coordinator
from amplifier.events import ARTIFACT_WRITE
from amplifier.models import ToolResult

from .._confined_paths import Workspace, open_file
from .._tool_base import Stop, ToolFailure, Workers, shown
from ._options import FilesystemOptions
from ._read_tools import FILE_PATH, FileTool
from ._reading import is_binary, read_all
from ._writing import Version, Written, replace_file

_LATE_PATIENCE = 0.5
_LINES_NAMED = 5


class WritingTool(FileTool):
    """A tool that replaces files, one at a time: two edits in one answer of the model must both be kept.

    Args:
        lock: Shared by the writing tools of one module.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        workspace: Workspace,
        workers: Workers,
        options: FilesystemOptions,
        lock: anyio.Lock,
    ) -> None:
        super().__init__(coordinator, workspace, workers, options)
        self._lock = lock

    async def _write(self, work: Callable[[Stop], Written], values: dict[str, Any]) -> Written:
        done: list[Written] = []

        def noted(stop: Stop) -> Written:
            done.append(work(stop))
            return done[0]

        try:
            async with self._lock:
                written = await self._work(noted, values)
        except anyio.get_cancelled_exc_class():
            if done:  # cancelled too late: the file has changed, and observers must get the event
                with anyio.move_on_after(_LATE_PATIENCE, shield=True):
                    await self._emit(ARTIFACT_WRITE, done[0].place, done[0].size)
            raise
        await self._emit(ARTIFACT_WRITE, written.place, written.size)
        return written

    def _encoded(self, text: str, field: str) -> bytes:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            problem = f"a lone surrogate at character {error.start} cannot be written as UTF-8"
            raise ToolFailure("InvalidText", f"{field}: {problem}") from None
        if len(data) > self._options.max_write_bytes:
            problem = f"{len(data)} bytes, more than the {self._options.max_write_bytes} this tool may write"
            raise ToolFailure("TooLarge", f"{field}: {problem}")
        return data


class WriteFileTool(WritingTool):
    """Writes a whole file."""

    _name = "write_file"
    _description = (
        "Write a text file as a whole, in place of what was there before. Missing directories are made. "
        "To change a part of a file use edit_file."
    )
    _schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "file_path": FILE_PATH,
            "content": {"type": "string", "description": "The whole new content."},
        },
        "required": ["file_path", "content"],
        "additionalProperties": False,
    }

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        data = self._encoded(values["content"], "content")

        def work(stop: Stop) -> Written:
            access = self._workspace.writable()
            return replace_file(access, access.locate(values["file_path"]), data, stop=stop)

        written = await self._write(work, values)
        path = self._workspace.shown(written.place)
        return ToolResult(output={"file_path": path, "bytes": written.size, "created": written.created})


class EditFileTool(WritingTool):
    """Replaces exact text in a file."""

    _name = "edit_file"
    _description = (
        "Replace text in a file. `old_string` must be in the file exactly as given, white space included, and only "
        "once: add lines around it until it is unique, or set `replace_all`."
    )
    _schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "file_path": FILE_PATH,
            "old_string": {"type": "string", "description": "The text to replace.", "minLength": 1},
            "new_string": {"type": "string", "description": "The text to put there; empty to delete."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence.", "default": False},
        },
        "required": ["file_path", "old_string", "new_string"],
        "additionalProperties": False,
    }

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        self._encoded(values["old_string"], "old_string")
        self._encoded(values["new_string"], "new_string")
        if values["old_string"] == values["new_string"]:
            raise ToolFailure("NothingToChange", "old_string and new_string are the same")
        replaced: list[int] = []

        def work(stop: Stop) -> Written:
            access = self._workspace.writable()
            place = access.locate(values["file_path"])
            file, place = open_file(access, place)
            try:
                version = Version.of(os.fstat(file))
                data = read_all(file, max_bytes=self._options.max_write_bytes, stop=stop, subject=shown(place.path))
            finally:
                os.close(file)
            text, count = _edited(_decoded(data, shown(place.path)), values, self._workspace.shown(place))
            replaced.append(count)
            encoded = self._encoded(text, "the edited file")
            return replace_file(access, place, encoded, stop=stop, expected=version)

        written = await self._write(work, values)
        path = self._workspace.shown(written.place)
        return ToolResult(output={"file_path": path, "bytes": written.size, "replacements": replaced[0]})


def _decoded(data: bytes, subject: str) -> str:
    if is_binary(data):
        raise ToolFailure("BinaryFile", f"{subject}: a binary file, expected text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolFailure("NotUTF8", f"{subject}: byte {error.start} is not UTF-8; only UTF-8 can be edited") from None


def _edited(text: str, values: dict[str, Any], subject: str) -> tuple[str, int]:
    old, new = values["old_string"], values["new_string"]
    count = text.count(old)
    if not count:
        hint = ""
        if "\r\n" in text and old.replace("\r\n", "\n") in text.replace("\r\n", "\n"):
            hint = "; the file ends its lines with \\r\\n, so must old_string"
        elif old.strip() and old.strip() in text:
            hint = "; it does without the white space around it"
        raise ToolFailure("TextNotFound", f"{subject}: old_string does not occur{hint}. Read the file and copy exactly")
    if count > 1 and not values["replace_all"]:
        where = ", ".join(map(str, _line_numbers(text, old)))
        more = ", …" if count > _LINES_NAMED else ""
        raise ToolFailure(
            "TextNotUnique",
            f"{subject}: old_string occurs {count} times, at lines {where}{more}; make it unique or set replace_all",
        )
    return text.replace(old, new), count


def _line_numbers(text: str, old: str) -> list[int]:
    numbers: list[int] = []
    position = text.find(old)
    while position >= 0 and len(numbers) < _LINES_NAMED:
        numbers.append(text.count("\n", 0, position) + 1)
        position = text.find(old, position + len(old))
    return numbers
