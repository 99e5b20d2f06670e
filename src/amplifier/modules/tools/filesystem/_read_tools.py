"""The tools read_file and list_directory, the options, and code that all tools here share."""

from __future__ import annotations

import base64
import codecs
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Protocol, TypeVar

import anyio
import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import AmplifierError
from amplifier.events import ARTIFACT_READ
from amplifier.models import ImageBlock, TextBlock, ToolResult
from amplifier.models.prompts import PDF, media_type

from ..._shared.configuration import choices, flag, option, seconds, texts, whole_number
from ..._shared.failure import ToolFailure, shown
from ..._shared.protected_places import ProtectedPlaces
from ..._shared.worker_threads import Stop, Workers
from .._base import BuiltinTool, path_name, tool_input, whole
from .._glob import DEFAULT_IGNORED, directory_names
from .._paths import ConfinedPath, Entry, Workspace, entries_of, open_directory, open_file

logger = logging.getLogger("amplifier.modules.tools.filesystem")

READING_TOOLS = ("read_file", "list_directory", "glob")
WRITING_TOOLS = ("write_file", "edit_file")


@attrs.frozen(kw_only=True)
class FilesystemOptions:
    """The directories that the tools may use, and the limits of one call.

    Attributes:
        allowed_paths: The directories that may be read. None for the session's working directory.
        writable_paths: The directories that may be written. None for all of them.
        read_only: True if nothing may be written.
        tools: The tools to mount. None for all that the other options leave useful.
        max_read_bytes: Maximum size of the text in one result.
        max_write_bytes: Maximum size of a file that is written.
        max_entries: Maximum number of entries in one listing.
        max_results: Maximum number of paths in one result of glob.
        images: True to return images as content blocks.
        max_image_bytes: Maximum size of an image.
        ignore: Names of directories that glob does not enter.
        timeout: Seconds for one call.
        threads: Maximum number of calls that run at the same time.
    """

    allowed_paths: tuple[str, ...] | None = option(texts(least=1), default=None, restricts=True)
    writable_paths: tuple[str, ...] | None = option(texts(), default=None, restricts=True)
    read_only: bool = option(flag, default=False, restricts=True)
    tools: tuple[str, ...] | None = option(
        choices(*READING_TOOLS, *WRITING_TOOLS), default=None, restricts=True
    )
    max_read_bytes: int = option(whole_number(1), default=256 << 10)
    max_write_bytes: int = option(whole_number(1), default=10 << 20)
    max_entries: int = option(whole_number(1), default=1000)
    max_results: int = option(whole_number(1), default=1000)
    images: bool = option(flag, default=False)
    max_image_bytes: int = option(whole_number(1), default=5 << 20)
    ignore: frozenset[str] = option(directory_names, default=DEFAULT_IGNORED)
    timeout: float = option(seconds, default=30.0)
    threads: int = option(whole_number(1), default=4)


CHUNK = 1 << 16
_SNIFFED = 8192
_MAX_SCANNED = 64 << 20
_PIECES_OF_LINES = re.compile(rb"[^\n]*\n|[^\n]+").findall


# ── reading ───────────────────────────────────────────────────────────────────────────────────────
# These functions block and run in a worker thread.


def image_type(head: bytes) -> str | None:
    """Return the media type of an image from its first bytes. None if models can't read it."""
    kind = media_type(head)
    return None if kind == PDF else kind


def is_binary(head: bytes) -> bool:
    """Return whether the beginning of a file has a NUL, so that the file isn't text."""
    return b"\0" in head[:_SNIFFED]


@attrs.define
class Lines:
    """A range of lines of a file.

    Attributes:
        first: The number of the first line, from 1.
        limit: Maximum number of lines.
        max_bytes: Maximum size of `data`.
        data: The bytes of the lines.
        total: The number of lines in the whole file. None if its end was not reached.
        scanned: The number of bytes read from the file.
        is_cut: True if `data` ends within a line because of `max_bytes`.
    """

    first: int
    limit: int
    max_bytes: int
    data: bytearray = attrs.field(factory=bytearray)
    total: int | None = None
    scanned: int = 0
    is_cut: bool = False

    def read(self, chunks: Iterable[bytes]) -> None:
        """Keep the lines of the range, and count all lines.

        Args:
            chunks: The content of the file from its beginning.
        """
        line, ends_with_newline = 1, True
        for chunk in chunks:
            self.scanned += len(chunk)
            for piece in _PIECES_OF_LINES(chunk):
                if self.first <= line < self.first + self.limit and not self.is_cut:
                    free = self.max_bytes - len(self.data)
                    self.is_cut = len(piece) > free
                    self.data += piece[:free]
                ends_with_newline = piece.endswith(b"\n")
                line += ends_with_newline
            if self.scanned >= _MAX_SCANNED:
                return
        self.total = line - ends_with_newline

    def text(self) -> tuple[str, bool]:
        """Return the lines as text, and whether bytes that aren't UTF-8 were replaced.

        Half a character at the cut is left out.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text = decoder.decode(bytes(self.data), final=not self.is_cut)
        try:
            codecs.getincrementaldecoder("utf-8")().decode(bytes(self.data), final=not self.is_cut)
        except UnicodeDecodeError:
            return text, True
        return text, False


def chunks_of(file: int, stop: Stop, head: bytes = b"") -> Iterator[bytes]:
    """Read an open file in pieces. ``head`` is its beginning, if already read."""
    chunk = head or os.read(file, CHUNK)
    while chunk:
        stop.check()
        yield chunk
        chunk = os.read(file, CHUNK)


def read_all(file: int, *, max_bytes: int, stop: Stop, subject: str) -> bytes:
    """Read the whole file.

    Raises:
        ToolFailure: The file is larger than allowed.
    """
    data = bytearray()
    for chunk in chunks_of(file, stop):
        data += chunk
        if len(data) > max_bytes:
            raise ToolFailure(
                "TooLarge",
                f"{subject}: larger than the {max_bytes} bytes that this tool may read at once",
            )
    return bytes(data)


_Result = TypeVar("_Result")

FILE_PATH = option(
    path_name, doc="The file, relative to the workspace or absolute inside it. Without '..'."
)


class EditorFiles(Protocol):
    """The capability ``session.editor_files``: the files of an editor, with unsaved changes."""

    async def read(self, path: str) -> str | None:
        """Return the text of a file, or None to read it from disk."""

    async def write(self, path: str, text: str) -> bool:
        """Replace the text of a file. Return False if the caller has to write to disk."""


class FileTool(BuiltinTool):
    """A tool of this module.

    Args:
        coordinator: The coordinator of the session.
        workspace: The directories that may be used.
        workers: The module's threads.
        options: The configuration.
        lock: Held while a file is replaced, so that two edits in one response are both kept.
        protected: The paths that are changed only if a person allows it.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        workspace: Workspace,
        workers: Workers,
        options: FilesystemOptions,
        lock: anyio.Lock,
        protected: ProtectedPlaces,
    ) -> None:
        self._coordinator = coordinator
        self._workspace = workspace
        self._workers = workers
        self._options = options
        self._lock = lock
        self._protected = protected

    @property
    def _editor(self) -> EditorFiles | None:
        """The files of the editor that the session belongs to, if any."""
        editor: EditorFiles | None = self._coordinator.get_capability("session.editor_files")
        return editor

    async def _work(self, work: Callable[[Stop], _Result], values: dict[str, Any]) -> _Result:
        return await self._workers.run(work, label=f"{self._name} {self._subject(values)}")

    async def _emit(self, event: str, place: ConfinedPath, size: int) -> None:
        try:
            await self._coordinator.hooks.emit(
                event, {"path": shown(place.path, 5000), "bytes": size}
            )
        except AmplifierError:
            # The file has been read or written, whether or not an observer fails.
            logger.exception("%s: %s could not be emitted", self._name, event)


class ReadFileTool(FileTool):
    """The tool that reads a text file, or a range of its lines."""

    _name = "read_file"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Read a text file. Returns at most `limit` lines, starting at line `offset` (1 is the "
        "first), and states whether there is more and where to continue. Binary files are refused."
    )
    _input = tool_input(
        file_path=FILE_PATH,
        offset=option(whole(1, 1_000_000_000), 1, "The first line to return, counted from 1."),
        limit=option(whole(1, 100_000), 2000, "Maximum number of lines to return."),
    )

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        place, result, size = await self._work(lambda stop: self._read(values, stop), values)
        if self._editor is not None and (text := await self._editor.read(place.path)) is not None:
            lines = Lines(values["offset"], values["limit"], self._options.max_read_bytes)
            lines.read([text.encode(errors="replace")])
            result, size = ToolResult(output=self._output(lines, place)), lines.scanned
        await self._emit(ARTIFACT_READ, place, size)
        return result

    def _read(self, values: dict[str, Any], stop: Stop) -> tuple[ConfinedPath, ToolResult, int]:
        access = self._workspace.readable()
        file, place = open_file(access, access.locate(values["file_path"]))
        try:
            head = os.read(file, CHUNK)
            if is_binary(head) or (self._options.images and image_type(head)):
                return place, *self._binary(file, head, place, stop)
            lines = Lines(values["offset"], values["limit"], self._options.max_read_bytes)
            lines.read(chunks_of(file, stop, head))
        finally:
            os.close(file)
        return place, ToolResult(output=self._output(lines, place)), lines.scanned

    def _output(self, lines: Lines, place: ConfinedPath) -> dict[str, Any]:
        text, replaced = lines.text()
        count = text.count("\n") + (not text.endswith("\n") and bool(text))
        last = lines.first + count - 1
        output: dict[str, Any] = {
            "file_path": self._workspace.shown(place),
            "content": text,
            "first_line": lines.first,
            "lines": count,
            "total_lines": lines.total,
            "truncated": lines.is_cut or lines.total is None or last < lines.total,
        }
        notes = []
        if lines.is_cut:
            advice = (
                f"continue with offset {last}"
                if count > 1
                else "the rest of this line cannot be shown"
            )
            notes.append(
                f"cut after {self._options.max_read_bytes} bytes, in line {last}; {advice}"
            )
        elif lines.total is None:
            notes.append(f"the file is longer than {lines.scanned} bytes; the rest was not read")
        elif not count:
            notes.append(
                "the file is empty" if not lines.total else f"the file has only {lines.total} lines"
            )
        elif last < lines.total:
            notes.append(
                f"lines {lines.first} to {last} of {lines.total}; continue with offset {last + 1}"
            )
        if replaced:
            notes.append(
                "bytes that are not UTF-8 are shown as U+FFFD; edit_file will refuse this file"
            )
        if notes:
            output["note"] = "; ".join(notes)
        return output

    def _binary(
        self, file: int, head: bytes, place: ConfinedPath, stop: Stop
    ) -> tuple[ToolResult, int]:
        kind, size = image_type(head), os.fstat(file).st_size
        path = self._workspace.shown(place)
        if kind is None or not self._options.images:
            suffix = f", {kind}" if kind else ""
            raise ToolFailure(
                "BinaryFile", f"{path}: a binary file ({size} bytes{suffix}), expected text"
            )
        os.lseek(file, 0, os.SEEK_SET)
        data = read_all(file, max_bytes=self._options.max_image_bytes, stop=stop, subject=path)
        block = ImageBlock(
            source={
                "type": "base64",
                "media_type": kind,
                "data": base64.b64encode(data).decode("ascii"),
            }
        )
        output = {"file_path": path, "media_type": kind, "bytes": len(data)}
        result = ToolResult(output=output, content=[TextBlock(text=f"{path} ({kind})"), block])
        return result, len(data)


class ListDirectoryTool(FileTool):
    """The tool that lists one level of a directory."""

    _name = "list_directory"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "List the entries of a directory: name, type (file, directory, link, other) and size in "
        "bytes of files. One level only; use glob to look deeper."
    )
    _input = tool_input(path=option(path_name, ".", "The directory; the workspace if left out."))

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        return ToolResult(
            output=await self._work(lambda stop: self._list(values["path"], stop), values)
        )

    def _list(self, path: str, stop: Stop) -> dict[str, Any]:
        access = self._workspace.readable()
        directory, place = open_directory(access, access.locate(path))
        limit = self._options.max_entries
        has_more = False
        entries: list[dict[str, Any]] = []
        try:
            for entry in entries_of(directory):
                stop.check()
                if len(entries) == limit:
                    has_more = True
                    break
                entries.append(_describe(entry, directory))
        finally:
            os.close(directory)
        entries.sort(key=lambda entry: entry["name"])
        output: dict[str, Any] = {
            "path": self._workspace.shown(place),
            "entries": entries,
            "count": len(entries),
            "truncated": has_more,
        }
        if has_more:
            output["note"] = (
                f"the directory has more than {limit} entries; only some of them are listed, use "
                "glob for the rest"
            )
        return output


def _describe(entry: Entry, directory: int) -> dict[str, Any]:
    details: dict[str, Any] = {"name": shown(entry.name, 1000), "type": entry.kind}
    if entry.kind == "file":
        # The entry may have been removed since the listing.
        with contextlib.suppress(OSError):
            details["size"] = os.stat(entry.name, dir_fd=directory, follow_symlinks=False).st_size
    return details
