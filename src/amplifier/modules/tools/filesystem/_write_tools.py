"""The tools write_file and edit_file, and the mounting of all tools of this module."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator, current_call
from amplifier.contracts.questions import render_prompt
from amplifier.errors import NoOneToAskError
from amplifier.events import ARTIFACT_WRITE, TOOL_PRE
from amplifier.models import HookResult, ToolResult

from ..._shared.configuration import read_options
from ..._shared.failure import ToolFailure, shown
from ..._shared.protected_places import ProtectedPlaces, protected_places
from ..._shared.worker_threads import Stop, Workers
from .._base import BuiltinTool, characters, flag, option, tool_input
from .._glob import GlobTool
from .._paths import (
    AccessRoots,
    ConfinedPath,
    Workspace,
    open_file,
    open_parent,
    refuse_unless_regular,
)
from ._read_tools import (
    FILE_PATH,
    READING_TOOLS,
    WRITING_TOOLS,
    FilesystemOptions,
    FileTool,
    ListDirectoryTool,
    ReadFileTool,
    is_binary,
    read_all,
)

MODULE = "tool-filesystem"

_CREATE = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_PIECE = 1 << 20


# ── writing ───────────────────────────────────────────────────────────────────────────────────────
# A file is replaced atomically: it has either the old content or the new, even if the call is
# cancelled. The new content is written to a file in the same directory with an unpredictable name,
# which is then renamed by directory descriptor. So nothing is written through a link. These
# functions block and run in a worker thread.
#
# The permission bits and, where allowed, the owner are kept. Access lists and extended attributes
# are not. A process that is killed may leave a file ``.amplifier-….tmp``. Directories that were
# made for a file stay, even if it isn't written.


Version: TypeAlias = tuple[int, ...]
"""The identity, size and time of a file when it was read, to notice a change."""


def _version(info: os.stat_result) -> Version:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


@attrs.frozen
class Written:
    """A file that was written.

    Attributes:
        place: Its path without links.
        size: Its size in bytes.
        created: True if it is new.
    """

    place: ConfinedPath
    size: int
    created: bool


def replace_file(
    access: AccessRoots,
    place: ConfinedPath,
    data: bytes,
    *,
    stop: Stop,
    expected: Version | None = None,
) -> Written:
    """Give a file new content, and make it and its directories if they are missing.

    Args:
        access: The roots for writing.
        place: The file.
        data: Its whole content.
        stop: Checked until just before the file changes, and not afterwards.
        expected: The version that the content was made from. Another version isn't overwritten.
            None overwrites every version.

    Raises:
        ToolFailure: The file isn't regular, has a hard link, has changed, or is outside.
        OSError: The file can't be written.
    """
    directory, place = open_parent(access, place, make=expected is None)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, directory)
        name = place.names[-1]
        old = _replaceable(directory, place)
        temporary = f".amplifier-{secrets.token_hex(8)}.tmp"
        # A new file gets the permissions that the umask leaves. The content of an existing file
        # must not become readable for more people, not even for a moment.
        file = os.open(temporary, _CREATE, 0o666 if old is None else 0o600, dir_fd=directory)
        try:
            try:
                _fill(file, data, old, stop)
                written = os.fstat(file)
            finally:
                os.close(file)
            stop.check()
            _refuse_if_changed(directory, place, temporary, written, expected)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise
        _sync_directory(directory)
        return Written(place, len(data), created=old is None)


def _replaceable(directory: int, place: ConfinedPath) -> os.stat_result | None:
    """Return the status of the current file, or None.

    Raises:
        ToolFailure: Replacing it is not allowed.
    """
    try:
        info = os.stat(place.names[-1], dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    refuse_unless_regular(info, place)
    if info.st_nlink > 1:
        raise ToolFailure(
            "HardLink",
            f"{shown(place.path)} has {info.st_nlink} names (hard links), and another one may be "
            "outside; it is not written",
        )
    return info


def _fill(file: int, data: bytes, old: os.stat_result | None, stop: Stop) -> None:
    rest = memoryview(data)
    while rest:
        stop.check()
        rest = rest[os.write(file, rest[:_PIECE]) :]
    if old is not None:
        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            # Only root may give files away. For others, the new file belongs to this process.
            with contextlib.suppress(OSError):
                os.fchown(file, old.st_uid, old.st_gid)
        os.fchmod(file, stat.S_IMODE(old.st_mode) & 0o777)
    os.fsync(file)


def _refuse_if_changed(
    directory: int,
    place: ConfinedPath,
    temporary: str,
    written: os.stat_result,
    expected: Version | None,
) -> None:
    current = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
    # The path was checked, so the directory must not have moved elsewhere since.
    if not _is_at(directory, place.parent.path) or not os.path.samestat(current, written):
        raise ToolFailure(
            "Changed",
            f"{shown(place.path)}: its directory is being tampered with; nothing was changed",
        )
    now = _replaceable(directory, place)
    if expected is not None and (now is None or _version(now) != expected):
        raise ToolFailure(
            "Changed",
            f"{shown(place.path)} was changed by another process meanwhile; read it again",
        )


def _is_at(directory: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(directory), os.lstat(path))
    except OSError:
        return False


def _sync_directory(directory: int) -> None:
    """Make the new name durable, if the system can. The content is already durable."""
    with contextlib.suppress(OSError):
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fsync(listing)
        finally:
            os.close(listing)


_LATE_EVENT_SECONDS = 0.5
_MAX_LINE_NUMBERS = 5


class _PlaceNotAllowedError(ToolFailure):
    """Raised if a call would change a protected path and the user hasn't been asked yet.

    Attributes:
        place: The real path.
        reason: The reason for its protection.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            "ProtectedPlace", f"{shown(place)} is protected ({reason}), and no one could be asked"
        )
        self.place = place
        self.reason = reason


class _Guard:
    """Checks the real path of a file when it is opened.

    Args:
        protected: The protected paths.
        judged: The real path that the approval hook checked for this call, and whether it may be
            changed although it is protected. None if the hook didn't check the call.
    """

    def __init__(self, protected: ProtectedPlaces, judged: tuple[str, bool] | None) -> None:
        self._protected = protected
        self._judged = judged
        self.allowed = {judged[0]} if judged is not None and judged[1] else set[str]()

    def check(self, place: ConfinedPath) -> None:
        """Do nothing for a path that may be changed.

        Raises:
            ToolFailure: Changing it is not allowed.
        """
        path = place.path
        if self._judged is not None and path != self._judged[0]:
            raise ToolFailure(
                "Changed",
                f"the path led to {shown(self._judged[0])} when the call was judged, and leads to "
                f"{shown(path)} now; nothing was changed",
            )
        judgement = self._protected.judge(path, root=place.root)
        if judgement.verdict == "refuse":
            raise ToolFailure(
                "ProtectedPlace", f"{shown(path)} is never changed: {judgement.reason}"
            )
        if judgement.verdict == "ask" and path not in self.allowed:
            raise _PlaceNotAllowedError(path, judgement.reason)


_MAX_QUESTIONS = 3
_MAX_QUESTION_CHARACTERS = 100_000


class WritingTool(FileTool):
    """A tool that replaces files, one at a time."""

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        call = current_call()
        judged_place = self._coordinator.get_capability("approval.judged_place")
        judged = judged_place(call.call_id) if callable(judged_place) and call is not None else None
        guard = _Guard(self._protected, judged)
        for _ in range(_MAX_QUESTIONS):
            try:
                return await self._run_guarded(values, guard)
            except _PlaceNotAllowedError as refused:
                await self._ask(refused, values)
                guard.allowed.add(refused.place)
        raise ToolFailure(
            "Changed",
            f"{self._subject(values)} leads to another protected place at every attempt",
        )

    @abstractmethod
    async def _run_guarded(self, values: dict[str, Any], guard: _Guard) -> ToolResult:
        """Do the work, but change nothing if the guard refuses the path.

        Raises:
            ToolFailure: The call failed.
            OSError: The system reported an error.
        """

    async def _ask(self, refused: _PlaceNotAllowedError, values: dict[str, Any]) -> None:
        """Ask the user whether a protected path may be changed.

        The approval hook didn't ask, or it asked about another path.

        Raises:
            ToolFailure: Changing it is not allowed, or there is no one to ask.
        """
        prompt = render_prompt(
            self._name, values, f"the place is protected: {refused.reason}", place=refused.place
        )
        if len(prompt) > _MAX_QUESTION_CHARACTERS:
            raise refused
        question = HookResult(
            action="ask_user",
            approval_prompt=prompt,
            approval_options=["Allow once", "Deny"],
            approval_default="deny",
        )
        try:
            decided = await self._coordinator.process_hook_result(question, TOOL_PRE, MODULE)
        except NoOneToAskError:
            raise refused from None
        if decided.action == "deny":
            raise ToolFailure("ProtectedPlace", f"{refused}, or the answer was no") from None

    async def _write(self, work: Callable[[Stop], Written], values: dict[str, Any]) -> Written:
        results: list[Written] = []

        def recorded(stop: Stop) -> Written:
            results.append(work(stop))
            return results[0]

        try:
            async with self._lock:
                written = await self._work(recorded, values)
        except anyio.get_cancelled_exc_class():
            if results:
                # The file had changed before the cancellation, so observers must get the event.
                with anyio.move_on_after(_LATE_EVENT_SECONDS, shield=True):
                    await self._emit(ARTIFACT_WRITE, results[0].place, results[0].size)
            raise
        await self._emit(ARTIFACT_WRITE, written.place, written.size)
        return written

    async def _write_in_editor(self, place: ConfinedPath, data: bytes) -> bool:
        """Let the editor write a file. Return False if it doesn't, or there is none."""
        if self._editor is None or not await self._editor.write(place.path, data.decode()):
            return False
        await self._emit(ARTIFACT_WRITE, place, len(data))
        return True

    def _encoded(self, text: str, field: str) -> bytes:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            problem = f"a lone surrogate at character {error.start} cannot be written as UTF-8"
            raise ToolFailure("InvalidText", f"{field}: {problem}") from None
        if len(data) > self._options.max_write_bytes:
            limit = self._options.max_write_bytes
            problem = f"{len(data)} bytes, more than the {limit} that this tool may write"
            raise ToolFailure("TooLarge", f"{field}: {problem}")
        return data


class WriteFileTool(WritingTool):
    """The tool that writes a whole file."""

    _name = "write_file"
    _description = (
        "Write a whole text file, replacing an existing one. Missing directories are made. To "
        "change a part of a file use edit_file."
    )
    _input = tool_input(
        file_path=FILE_PATH, content=option(characters(), doc="The whole new content.")
    )

    async def _run_guarded(self, values: dict[str, Any], guard: _Guard) -> ToolResult:
        data = self._encoded(values["content"], "content")

        def work(stop: Stop) -> Written:
            access = self._workspace.writable(guard.check)
            return replace_file(access, access.locate(values["file_path"]), data, stop=stop)

        def locate(stop: Stop) -> tuple[ConfinedPath, bool]:
            access = self._workspace.writable(guard.check)
            directory, place = open_parent(access, access.locate(values["file_path"]), make=True)
            try:
                return place, _replaceable(directory, place) is None
            finally:
                os.close(directory)

        if self._editor is not None:
            async with self._lock:
                place, is_new = await self._work(locate, values)
                if await self._write_in_editor(place, data):
                    shown_path = self._workspace.shown(place)
                    return ToolResult(
                        output={"file_path": shown_path, "bytes": len(data), "created": is_new}
                    )
        written = await self._write(work, values)
        path = self._workspace.shown(written.place)
        return ToolResult(
            output={"file_path": path, "bytes": written.size, "created": written.created}
        )


class EditFileTool(WritingTool):
    """The tool that replaces exact text in a file."""

    _name = "edit_file"
    _description = (
        "Replace text in a file. `old_string` must occur in the file exactly as given, including "
        "white space, and only once: add lines around it until it is unique, or set `replace_all`."
    )
    _input = tool_input(
        file_path=FILE_PATH,
        old_string=option(characters(1), doc="The text to replace."),
        new_string=option(characters(), doc="The text to put there. Empty to delete."),
        replace_all=option(flag, False, "Replace every occurrence."),
    )

    async def _run_guarded(self, values: dict[str, Any], guard: _Guard) -> ToolResult:
        self._encoded(values["old_string"], "old_string")
        self._encoded(values["new_string"], "new_string")
        if values["old_string"] == values["new_string"]:
            raise ToolFailure("NothingToChange", "old_string and new_string are the same")
        replaced: list[int] = []

        def read(stop: Stop) -> tuple[AccessRoots, ConfinedPath, Version, bytes]:
            access = self._workspace.writable(guard.check)
            place = access.locate(values["file_path"])
            file, place = open_file(access, place)
            try:
                version = _version(os.fstat(file))
                data = read_all(
                    file,
                    max_bytes=self._options.max_write_bytes,
                    stop=stop,
                    subject=shown(place.path),
                )
            finally:
                os.close(file)
            return access, place, version, data

        def edited(place: ConfinedPath, text: str) -> bytes:
            text, count = _edited(text, values, self._workspace.shown(place))
            replaced.append(count)
            return self._encoded(text, "the edited file")

        def work(stop: Stop) -> Written:
            access, place, version, data = read(stop)
            encoded = edited(place, _decoded(data, shown(place.path)))
            return replace_file(access, place, encoded, stop=stop, expected=version)

        if self._editor is not None:
            async with self._lock:
                _, place, _, _ = await self._work(read, values)
                text = await self._editor.read(place.path)
                if text is not None and await self._write_in_editor(
                    place, data := edited(place, text)
                ):
                    output = {"file_path": self._workspace.shown(place), "bytes": len(data)}
                    return ToolResult(output={**output, "replacements": replaced[0]})
                replaced.clear()
        written = await self._write(work, values)
        path = self._workspace.shown(written.place)
        return ToolResult(
            output={"file_path": path, "bytes": written.size, "replacements": replaced[0]}
        )


def _decoded(data: bytes, subject: str) -> str:
    if is_binary(data):
        raise ToolFailure("BinaryFile", f"{subject}: a binary file, expected text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolFailure(
            "NotUTF8", f"{subject}: byte {error.start} is not UTF-8; only UTF-8 can be edited"
        ) from None


def _edited(text: str, values: dict[str, Any], subject: str) -> tuple[str, int]:
    old, new = values["old_string"], values["new_string"]
    count = text.count(old)
    if not count:
        hint = ""
        if "\r\n" in text and old.replace("\r\n", "\n") in text.replace("\r\n", "\n"):
            hint = "; lines of the file end with \\r\\n, so those of old_string must, too"
        elif old.strip() and old.strip() in text:
            hint = "; it occurs without the white space around it"
        raise ToolFailure(
            "TextNotFound",
            f"{subject}: old_string does not occur{hint}. Read the file and copy the exact text",
        )
    if count > 1 and not values["replace_all"]:
        lines = ", ".join(map(str, _line_numbers(text, old)))
        more = ", …" if count > _MAX_LINE_NUMBERS else ""
        raise ToolFailure(
            "TextNotUnique",
            f"{subject}: old_string occurs {count} times, at lines {lines}{more}; make it unique "
            "or set replace_all",
        )
    return text.replace(old, new), count


def _line_numbers(text: str, old: str) -> list[int]:
    numbers: list[int] = []
    position = text.find(old)
    while position >= 0 and len(numbers) < _MAX_LINE_NUMBERS:
        numbers.append(text.count("\n", 0, position) + 1)
        position = text.find(old, position + len(old))
    return numbers


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount read_file, write_file, edit_file, list_directory and glob.

    The tools that write are left out if nothing may be written.

    Args:
        coordinator: The coordinator of the session.
        config: The keys of `FilesystemOptions`.

    Raises:
        PlanError: The config is invalid.
    """
    options = read_options(FilesystemOptions, MODULE, config)
    workspace = await anyio.to_thread.run_sync(
        Workspace,
        MODULE,
        coordinator,
        options.allowed_paths,
        options.writable_paths,
        options.read_only,
    )
    coordinator.register_capability("filesystem.real_place", workspace.real_place)
    workers = Workers(threads=options.threads, timeout=options.timeout)
    lock = anyio.Lock()
    protected = protected_places(coordinator)
    tools: list[BuiltinTool] = [
        kind(coordinator, workspace, workers, options, lock, protected)
        for kind in (ReadFileTool, ListDirectoryTool, WriteFileTool, EditFileTool)
    ]
    tools.append(
        GlobTool(workspace, workers, ignored=options.ignore, max_results=options.max_results)
    )
    by_name = {tool.name: tool for tool in tools}
    for name in READING_TOOLS + WRITING_TOOLS if options.tools is None else options.tools:
        if name in WRITING_TOOLS and not workspace.is_writable:
            continue
        # tool-search offers the same glob, and whichever module is mounted first provides it.
        if (
            name == "glob"
            and options.tools is None
            and coordinator.get("tools", "glob") is not None
        ):
            continue
        await coordinator.mount("tools", by_name[name])
