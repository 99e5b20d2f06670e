"""The options, read_file and list_directory, and what all tools of this module share."""

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
    """What the tools may touch, and how much one call may read, write and return.

    Attributes:
        allowed_paths: The roots; the session's working directory if absent.
        writable_paths: The roots below which files may be written; all of them if absent.
        read_only: Nothing may be written.
        tools: The tools to mount; all that are useful if absent.
        max_read_bytes: Of one text.
        max_write_bytes: Of one file.
        max_entries: Of one listing.
        max_results: Of one glob.
        images: Whether images are returned as content blocks.
        max_image_bytes: Of one image.
        ignore: Directories that glob does not enter.
        timeout: Seconds for one call.
        threads: Calls at the same time.
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
# Reads an open file: a range of lines as text, or everything as bytes; bounded, and able to stop.
#
# Blocking; runs in a worker thread.


def image_type(head: bytes) -> str | None:
    """The media type of an image a model can look at, by its first bytes; None for everything else."""
    kind = media_type(head)
    return None if kind == PDF else kind


def is_binary(head: bytes) -> bool:
    """Whether a file that begins like this is not text; what is judged is a NUL among its first bytes."""
    return b"\0" in head[:_SNIFFED]


@attrs.define
class Lines:
    """A range of lines of a file.

    Attributes:
        first: The number of the first line wanted, from 1.
        limit: How many lines are wanted.
        max_bytes: How many bytes may be kept.
        data: The bytes of the lines.
        total: Lines in the whole file; None if its end was not reached.
        scanned: Bytes read from the file.
        is_cut: Whether `data` ends within a line because of `max_bytes`.
    """

    first: int
    limit: int
    max_bytes: int
    data: bytearray = attrs.field(factory=bytearray)
    total: int | None = None
    scanned: int = 0
    is_cut: bool = False

    def read(self, chunks: Iterable[bytes]) -> None:
        """Take the content of a file, from its beginning; keep what belongs to the range and count the rest."""
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
        """The lines as text, and whether bytes that are no UTF-8 were replaced; half a character at a cut is left out."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text = decoder.decode(bytes(self.data), final=not self.is_cut)
        try:
            codecs.getincrementaldecoder("utf-8")().decode(bytes(self.data), final=not self.is_cut)
        except UnicodeDecodeError:
            return text, True
        return text, False


def chunks_of(file: int, stop: Stop, head: bytes = b"") -> Iterator[bytes]:
    """The content of an open file piece by piece, after its beginning if that was read already."""
    chunk = head or os.read(file, CHUNK)
    while chunk:
        stop.check()
        yield chunk
        chunk = os.read(file, CHUNK)


def read_all(file: int, *, max_bytes: int, stop: Stop, subject: str) -> bytes:
    """Everything in a file.

    Raises:
        ToolFailure: It is larger than allowed.
    """
    data = bytearray()
    for chunk in chunks_of(file, stop):
        data += chunk
        if len(data) > max_bytes:
            raise ToolFailure(
                "TooLarge",
                f"{subject}: larger than the {max_bytes} bytes this tool may read at once",
            )
    return bytes(data)


_Result = TypeVar("_Result")

FILE_PATH = option(
    path_name, doc="The file; relative to the workspace, or absolute inside it. Without '..'."
)


class EditorFiles(Protocol):
    """The capability ``session.editor_files``: the files of an editor, with changes that are not saved yet."""

    async def read(self, path: str) -> str | None:
        """The text of a file; None to read it from disk."""

    async def write(self, path: str, text: str) -> bool:
        """Replace the text of a file; returns False to write it to disk."""


class FileTool(BuiltinTool):
    """A tool of this module.

    Args:
        coordinator: For events.
        workspace: What may be touched.
        workers: The module's threads.
        options: How much.
        lock: Held while a file is replaced: two edits in one answer of the model must both be kept.
        protected: Places that are changed only if a person allows it.
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
        """Where the files are open, if the session belongs to an editor."""
        found: EditorFiles | None = self._coordinator.get_capability("session.editor_files")
        return found

    async def _work(self, work: Callable[[Stop], _Result], values: dict[str, Any]) -> _Result:
        return await self._workers.run(work, label=f"{self._name} {self._subject(values)}")

    async def _emit(self, event: str, place: ConfinedPath, size: int) -> None:
        try:
            await self._coordinator.hooks.emit(
                event, {"path": shown(place.path, 5000), "bytes": size}
            )
        except AmplifierError:
            # The file is read or written already; a failing observer does not change that.
            logger.exception("%s: %s could not be emitted", self._name, event)


class ReadFileTool(FileTool):
    """Reads a text file, or a range of its lines."""

    _name = "read_file"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Read a text file. Gives the lines from `offset` (1 is the first) on, at most `limit` of them. "
        "The answer states whether there is more and where to continue. Binary files are refused."
    )
    _input = tool_input(
        file_path=FILE_PATH,
        offset=option(whole(1, 1_000_000_000), 1, "The first line wanted, counted from 1."),
        limit=option(whole(1, 100_000), 2000, "How many lines are wanted."),
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
            onward = (
                f"go on with offset {last}"
                if count > 1
                else "the rest of this line cannot be shown"
            )
            notes.append(
                f"cut after {self._options.max_read_bytes} bytes, in line {last}; {onward}"
            )
        elif lines.total is None:
            notes.append(
                f"the file is longer than {lines.scanned} bytes; the rest was not looked at"
            )
        elif not count:
            notes.append(
                "the file is empty" if not lines.total else f"the file has only {lines.total} lines"
            )
        elif last < lines.total:
            notes.append(
                f"lines {lines.first} to {last} of {lines.total}; go on with offset {last + 1}"
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
            looks = f", {kind}" if kind else ""
            raise ToolFailure(
                "BinaryFile", f"{path}: a binary file ({size} bytes{looks}), expected text"
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
        return ToolResult(output=output, content=[TextBlock(text=f"{path} ({kind})"), block]), len(
            data
        )


class ListDirectoryTool(FileTool):
    """Lists a directory, one level."""

    _name = "list_directory"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "List what is in a directory: name, type (file, directory, link, other) and size in bytes of files. "
        "One level only; use glob to look deeper."
    )
    _input = tool_input(path=option(path_name, ".", "The directory; the workspace if left out."))

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        return ToolResult(
            output=await self._work(lambda stop: self._list(values["path"], stop), values)
        )

    def _list(self, path: str, stop: Stop) -> dict[str, Any]:
        access = self._workspace.readable()
        directory, place = open_directory(access, access.locate(path))
        most = self._options.max_entries
        more = False
        entries: list[dict[str, Any]] = []
        try:
            for entry in entries_of(directory):
                stop.check()
                if len(entries) == most:
                    more = True
                    break
                entries.append(_described(entry, directory))
        finally:
            os.close(directory)
        entries.sort(key=lambda entry: entry["name"])
        output: dict[str, Any] = {
            "path": self._workspace.shown(place),
            "entries": entries,
            "count": len(entries),
            "truncated": more,
        }
        if more:
            output["note"] = (
                f"the directory has more than {most} entries; these are some of them, use glob for the rest"
            )
        return output


def _described(entry: Entry, directory: int) -> dict[str, Any]:
    described: dict[str, Any] = {"name": shown(entry.name, 1000), "type": entry.kind}
    if entry.kind == "file":
        with contextlib.suppress(OSError):  # gone since it was listed
            described["size"] = os.stat(entry.name, dir_fd=directory, follow_symlinks=False).st_size
    return described
