"""Undo and redo the changes that a turn made to the files of a folder and to the conversation.

<sessions>/<id>/
├── checkpoints.json     the latest turns: their trees, their conversations, undone messages
└── checkpoints.git      the copies of the folder
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.json import visible_text
from amplifier._internal.programs import find_program, safe_search_path
from amplifier._internal.regular_files import replace_file
from amplifier.errors import AmplifierError
from amplifier.models import HookResult
from amplifier.modules.hooks.approval import FREE_TOOLS
from amplifier.store import Conversation, SessionIndex, encode_message
from amplifier.store.folders import make_private_folder

_MAX_TURNS: Final = 50
_MAX_FILES: Final = 20_000
_MAX_BYTES: Final = 500_000_000
_MAX_FILE_BYTES: Final = 20_000_000
_COPY_SECONDS: Final = 20.0
"""Deadline in seconds for one copy, for which the turn waits."""

_MAX_NAMES: Final = 12
_READ_BY_GIT: Final = (".gitignore", ".gitattributes")
_EXACT: Final = "* -text -ident -filter !eol !working-tree-encoding\n"
"""Attributes that override the folder's own, so that files are copied byte by byte."""


class UndoError(AmplifierError):
    """Raised if there is no turn to undo or redo, or it can't be undone or redone."""


class _ObstacleError(UndoError):
    """Raised if a file that the user can remove prevents the copy of the folder."""


@attrs.define
class _Turn:
    """A turn that can be undone.

    Attributes:
        prompt: The beginning of the prompt.
        messages: The number of messages before the turn.
        digest: The digest of those messages.
        before: The tree before the turn's first call that may have changed something. None if there
            was no such call, or no copy.
        after: The tree at the end of the turn. None if the process was killed.
        uncovered: The paths that a copy doesn't contain, with the reason.
        modes: The permissions of files before the turn, since git keeps only the executable bit.
            When the turn has ended, only those of the files that it changed.
        modes_after: The permissions of the same files at the end of the turn.
        tools: The tools that may have done more than change files in the folder.
        names: The names, without folders, of the files that it wrote with write_file and edit_file.
        problem: The reason why there is no copy.
        removed: The messages that were removed when the turn was undone. None if it wasn't undone.
        moving: The files that are being moved. A process that was killed may leave them half done,
            which doesn't count as a change.
    """

    prompt: str
    messages: int
    digest: str
    before: str | None = None
    after: str | None = None
    uncovered: dict[str, str] = attrs.field(factory=dict)
    modes: dict[str, int] = attrs.field(factory=dict)
    modes_after: dict[str, int] = attrs.field(factory=dict)
    tools: list[str] = attrs.field(factory=list)
    names: list[str] = attrs.field(factory=list)
    problem: str | None = None
    removed: list[dict[str, Any]] | None = None
    moving: list[str] = attrs.field(factory=list)


# Before the first call of a turn that may change something, and at the end of the turn, the folder
# is copied into a bare git repository of the session. This repository shares nothing with one of
# the user: no index, no references, no configuration. A copy is a tree of git, so unchanged files
# are stored once. Undoing a turn moves from the tree after it to the tree before it, as ``git
# checkout`` does. Files that were changed since then, and everything that a copy doesn't contain,
# are left as they are and reported.


class Checkpoints:
    """The turns of a session that can be undone. An instance is a handler of ``tool:pre``.

    Args:
        folder: The folder of the session.
        workspace: The folder to copy.
    """

    def __init__(self, folder: Path, workspace: Path) -> None:
        self._folder = folder
        self._copies = _Copies(folder / "checkpoints.git", workspace, state=folder.parent)
        self._turns: list[_Turn] | None = None
        self._running: _Turn | None = None
        self._copying = anyio.Lock()

    # ── while a turn runs ──

    async def begin(self, prompt: str | None, context: Any) -> None:
        """Record the start of a turn. Without a prompt, the interrupted turn continues."""
        messages = [] if context is None else await context.get_messages()
        await anyio.to_thread.run_sync(self._begin, prompt, messages)

    def _begin(self, prompt: str | None, messages: list[dict[str, Any]]) -> None:
        # An undone turn can no longer be redone.
        turns = [turn for turn in self._read() if turn.removed is None]
        if prompt is None and turns and turns[-1].after is None:
            self._running = turns[-1]
        else:
            self._running = _Turn(
                " ".join((prompt or "").split())[:80], len(messages), _digest(messages)
            )
            turns = [*turns, self._running][-_MAX_TURNS:]
        self._turns = turns

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Copy the folder before the first call that may change something."""
        turn, tool = self._running, str(data.get("tool_name"))
        if turn is not None and tool not in FREE_TOOLS:
            async with self._copying:
                if tool not in ("write_file", "edit_file"):
                    turn.tools += [tool] if tool not in turn.tools else []
                elif path := (data.get("tool_input") or {}).get("file_path"):
                    turn.names += _file_names(Path(str(path)))
                if turn.before is None and turn.problem is None:
                    await anyio.to_thread.run_sync(self._copy_before, turn)
        return HookResult()

    def _copy_before(self, turn: _Turn) -> None:
        try:
            turn.before, turn.uncovered = self._copies.take()
            turn.modes = self._copies.modes
            # The record is written now, so that undo works even if the process is killed.
            self._write()
        except (UndoError, OSError) as error:
            turn.before, turn.problem = None, str(error)

    async def end(self) -> None:
        """Copy the folder as the turn has left it, within the deadline for a copy."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._end)

    def _end(self) -> None:
        turn, self._running = self._running, None
        if turn is None:
            return
        if turn.before is not None:
            try:
                turn.after, more = self._copies.take()
                turn.uncovered |= more
                changed = self._copies.changes(turn.before, turn.after)
                changed |= _changed_modes(turn.modes, self._copies.modes)
                turn.modes = {path: mode for path, mode in turn.modes.items() if path in changed}
                turn.modes_after = {
                    path: mode for path, mode in self._copies.modes.items() if path in changed
                }
            except _ObstacleError:
                # In this case undo copies the folder, as it does after a killed process.
                turn.after = None
            except (UndoError, OSError) as error:
                turn.before, turn.problem = None, str(error)
        self._write()

    # ── afterwards ──

    async def undo_open(self, context: Any, *, redo: bool = False) -> list[str]:
        """Undo or redo the latest turn of an open session. Return the lines of a report.

        Raises:
            UndoError: There is no such turn, or its files can't be moved.
        """
        messages = [] if context is None else await context.get_messages()
        kept, lines = await anyio.to_thread.run_sync(lambda: self.undo(messages, redo=redo))
        if context is not None and kept != messages:
            await replace_messages(context, kept)
        return lines

    def undo(
        self, messages: Sequence[dict[str, Any]], *, redo: bool = False
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Undo or redo a turn's changes to files. Return the remaining conversation and a report.

        Raises:
            UndoError: There is no such turn, or its files can't be moved.
        """
        turns = self._read()
        done = [turn for turn in turns if turn.removed is None]
        if len(done) == (len(turns) if redo else 0):
            raise UndoError("there is nothing to redo" if redo else "there is no turn to undo")
        turn = turns[len(done)] if redo else done[-1]
        changed, kept = self._move(turn, redo=redo)
        known = len(messages) >= turn.messages and _digest(messages[: turn.messages]) == turn.digest
        left = list(messages)
        if redo:
            left, turn.removed = (
                ([*messages[: turn.messages], *(turn.removed or ())] if known else left),
                None,
            )
        else:
            left, turn.removed = (
                (left[: turn.messages], left[turn.messages :]) if known else (left, [])
            )
        self._turns = turns
        self._write()
        lines = [f"{'Done again' if redo else 'Taken back'}: {turn.prompt}"]
        lines += [f"  {_named(changed)}" if changed else "  no file was changed"]
        lines += [
            f"  left as it is, {reason}: {_named(names)}"
            for reason, names in _grouped(kept).items()
        ]
        if not known:
            lines.append("  the conversation stays: it was replaced since then")
        if turn.problem is not None:
            lines.append(f"  files stay as they are: {turn.problem}")
        if turn.tools and not redo:
            lines.append(
                f"  cannot be taken back: what {', '.join(turn.tools)} did outside of this folder, "
                "in .git, to files that .gitignore names, to processes, or over the network"
            )
        return left, [visible_text(line, multiline=False) for line in lines]

    def _move(self, turn: _Turn, *, redo: bool) -> tuple[list[str], dict[str, str]]:
        """Switch the files to their other content.

        Returns:
            The files that were switched, and the reason for each that wasn't.
        """
        if turn.before is None:
            return [], {}
        now, uncovered = self._copies.take()
        if turn.after is None:  # its process was killed
            turn.after, turn.uncovered, turn.names = now, turn.uncovered | uncovered, []
            turn.modes_after = self._copies.modes
        start, goal = (turn.before, turn.after) if redo else (turn.after, turn.before)
        had, modes = (turn.modes, turn.modes_after) if redo else (turn.modes_after, turn.modes)
        wanted = _changed_modes(had, modes) | self._copies.changes(start, goal)
        unchanged = {
            path: mode
            for path, mode in self._copies.modes.items()
            if path in had and had[path] == modes.get(path)
        }
        # Permissions that the turn didn't change stay as they are.
        modes = modes | unchanged
        changed = self._copies.changes(start, now).keys() - set(turn.moving)
        kept = dict.fromkeys(_in_the_way(wanted, changed), "changed since then")
        kept |= dict.fromkeys(
            _in_the_way(wanted, turn.uncovered.keys() | uncovered), "not in the copy"
        )
        # If the turn used no other tools, every other change is someone else's.
        if turn.names and not turn.tools:
            others = [path for path in wanted if path.rpartition("/")[2] not in turn.names]
            kept = dict.fromkeys(others, "not changed by the turn") | kept
        todo = {path: entry for path, entry in wanted.items() if path not in kept}
        if todo:
            turn.moving = sorted(todo)
            self._write()
            try:
                self._copies.move(now, todo, modes)
            except UndoError:  # nothing was moved
                turn.moving = []
                self._write()
                raise
            turn.moving = []
        beyond = (turn.uncovered | uncovered) if turn.tools else {}
        return sorted(todo), {
            **kept,
            **{name: reason for name, reason in beyond.items() if reason != "ignored"},
        }

    # ── on disk ──

    def _read(self) -> list[_Turn]:
        if self._turns is None:
            try:
                stored = json.loads((self._folder / "checkpoints.json").read_bytes())
                self._turns = [_Turn(**turn) for turn in stored]
            except FileNotFoundError:
                self._turns = []
            except (ValueError, TypeError) as error:
                raise UndoError(
                    f"{self._folder / 'checkpoints.json'} is damaged: {error}"
                ) from error
        return self._turns

    def _write(self) -> None:
        make_private_folder(self._folder)
        content = json.dumps([attrs.asdict(turn) for turn in self._turns or ()])
        replace_file(self._folder / "checkpoints.json", content.encode())


async def replace_messages(context: Any, messages: list[dict[str, Any]]) -> None:
    """Replace the conversation of an open session."""
    await context.set_messages(messages)
    # A context into which a conversation was loaded ignores the first call.
    if len(await context.get_messages()) != len(messages):
        await context.clear()
        await context.set_messages(messages)


def undo_stored(store: SessionIndex, session_id: str, *, redo: bool = False) -> list[str]:
    """Undo or redo the latest turn of a session that isn't open. Return the lines of a report.

    Raises:
        UndoError: There is no such turn, or its files can't be moved.
        SessionLockedError: The session is open.
    """
    record, folder = store.record(session_id), store.folder(session_id)
    conversation = Conversation(folder, session_id)
    messages = conversation.open()
    try:
        left, lines = Checkpoints(folder, Path(record.directory or ".")).undo(messages, redo=redo)
        if left != messages:
            conversation.replace([encode_message(message)[0] for message in left])
    finally:
        conversation.close()
    # After an undo, an interrupted turn must not continue.
    store.write(attrs.evolve(record, status="cancelled"), turn_plan=None)
    return lines


class _Copies:
    """Copies of a folder in a bare git repository."""

    def __init__(self, repository: Path, workspace: Path, *, state: Path) -> None:
        self._repository = repository
        self._workspace = workspace
        self._state = state
        self._deadline = 0.0
        self.modes: dict[str, int] = {}

    def take(self) -> tuple[str, dict[str, str]]:
        """Copy the folder. Return the tree, and the reason for each path that isn't in it.

        Raises:
            UndoError: The folder is too large, or git is missing or fails.
        """
        self._deadline = time.monotonic() + _COPY_SECONDS
        if self._workspace in (Path.home(), Path(self._workspace.anchor)):
            raise UndoError(f"{self._workspace} is too much to copy; work in a folder of your own")
        # A killed git leaves its locks. No other git is running, since a session is open only once.
        for lock in ("index.lock", "index.goal.lock"):
            (self._repository / lock).unlink(missing_ok=True)
        attributes = self._repository / "info" / "attributes"
        if not attributes.exists():
            make_private_folder(self._repository)
            self._git("init", "--quiet", "--bare", "--template=", str(self._repository))
            attributes.parent.mkdir(0o700, exist_ok=True)
            replace_file(attributes, _EXACT.encode())
        make_private_folder(self._repository)
        self._refuse_pipes()
        own = self._workspace / ".git" / "info" / "exclude"
        ignoring = ["--exclude-standard", *([f"--exclude-from={own}"] if own.is_file() else [])]
        listed = _split(self._git("ls-files", "-z", "--cached", "--others", *ignoring))
        ignored = _split(
            self._git("ls-files", "-z", "--others", "--ignored", "--directory", *ignoring)
        )
        uncovered = dict.fromkeys(ignored, "ignored")
        covered, total, real, self.modes = [], 0, {"": True}, {}
        for name in dict.fromkeys(listed):
            size, reason = self._measure(name)
            if not self._is_real(name.rpartition("/")[0], real):
                # The file's folder has become a link to files outside of this folder.
                continue
            if reason is None:
                covered.append(name)
                total += size
            elif reason != "a folder":
                uncovered[name] = reason
        if len(covered) > _MAX_FILES or total > _MAX_BYTES:
            raise UndoError(
                f"{self._workspace} has {len(covered):,} files and {total:,} bytes, which is too "
                "much to copy"
            )
        left_out = [name for name in set(listed) - set(covered) if not name.endswith("/")]
        self._git("update-index", "-z", "--force-remove", "--stdin", stdin=_joined(left_out))
        self._git(
            "update-index",
            "-z",
            "--add",
            "--remove",
            "--replace",
            "--stdin",
            stdin=_joined(covered),
        )
        return self._git("write-tree").decode().strip(), uncovered

    def _refuse_pipes(self) -> None:
        """Refuse a pipe in place of one of git's own files, because git would wait for the pipe.

        Raises:
            UndoError: There is such a pipe, or searching the folder takes too long.
        """
        pending = [str(self._workspace)]
        while pending:
            folder = pending.pop()
            if time.monotonic() > self._deadline:
                raise UndoError(f"{self._workspace} takes longer than {_COPY_SECONDS:g} s to copy")
            try:
                with os.scandir(folder) as listing:
                    entries = list(listing)
            except OSError:
                continue
            for entry in entries:
                if entry.name in _READ_BY_GIT and _is_pipe(entry):
                    reason = (
                        "no regular file, and git would wait for it; remove it to undo the turn"
                    )
                    raise _ObstacleError(f"{entry.path} is {reason}")
                if entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                    pending.append(entry.path)

    def _measure(self, name: str) -> tuple[int, str | None]:
        """Return the size of a file, and the reason why it isn't copied.

        The reason is None for a file that is copied and for a file that doesn't exist.
        """
        path = self._workspace / name
        if name.endswith("/"):
            return 0, "a repository of its own"
        if path.is_relative_to(self._state):
            return 0, "ignored"
        try:
            about = path.lstat()
        except OSError:
            return 0, None
        size, kind = about.st_size, stat.S_IFMT(about.st_mode)
        if kind == stat.S_IFREG:
            self.modes[name] = about.st_mode & 0o777
        elif kind == stat.S_IFDIR:
            # A folder has taken the file's place. Its files are listed under their own names.
            return 0, "a folder"
        elif kind != stat.S_IFLNK:
            return 0, "no regular file"
        if size > _MAX_FILE_BYTES:
            return size, f"larger than {_MAX_FILE_BYTES // 1_000_000} MB"
        return size, None if kind == stat.S_IFLNK or os.access(path, os.R_OK) else "cannot be read"

    def _is_real(self, folder: str, known: dict[str, bool]) -> bool:
        """Return whether no part of a path is a link."""
        if folder not in known:
            above = self._is_real(folder.rpartition("/")[0], known)
            known[folder] = above and not (self._workspace / folder).is_symlink()
        return known[folder]

    def changes(self, start: str, goal: str) -> dict[str, str]:
        """Return the paths that differ between two trees, each with its entry in the second tree.

        A path without an entry there has mode 0.
        """
        fields = _split(self._git("diff-tree", "-r", "-z", "--no-renames", start, goal))
        changes = {}
        for about, path in zip(fields[::2], fields[1::2], strict=True):
            _, mode, _, content, _ = about.split(" ")
            changes[path] = f"{mode} {content}\t{path}"
        return changes

    def move(self, now: str, entries: Mapping[str, str], modes: Mapping[str, int]) -> None:
        """Give some paths other content and permissions.

        Args:
            now: The tree of the folder as it is.
            entries: The entries by path. An empty entry keeps the content.
            modes: The permissions by path.
        """
        self._deadline = time.monotonic() + 3 * _COPY_SECONDS
        index = {"GIT_INDEX_FILE": str(self._repository / "index.goal")}
        self._git("read-tree", now, more=index)
        # Removals come first, since a file may become a folder.
        removed_first = sorted(filter(None, entries.values()), key=lambda entry: entry[0] != "0")
        self._git("update-index", "-z", "--index-info", stdin=_joined(removed_first), more=index)
        goal = self._git("write-tree", more=index).decode().strip()
        contents = [
            entry[7:].partition("\t")[0] for entry in entries.values() if entry.startswith("1")
        ]
        sizes = self._git(
            "cat-file", "--batch-check=%(objectsize)", stdin="\n".join([*contents, ""]).encode()
        )
        needed = sum(int(size) for size in sizes.split() if size.isdigit())
        free = shutil.disk_usage(self._workspace).free
        # git would truncate the files that it writes, and couldn't restore those that it has
        # replaced.
        if needed > free:
            raise UndoError(
                f"{self._workspace} needs {needed:,} bytes for the files, and has {free:,} left"
            )
        self._git("read-tree", "-m", "-u", now, goal)
        for path in modes.keys() & entries:
            (self._workspace / path).chmod(modes[path])

    def _git(
        self, *arguments: str, stdin: bytes = b"", more: Mapping[str, str] | None = None
    ) -> bytes:
        git = find_program("git", avoid=[self._workspace])
        if git is None:
            raise UndoError("git is not installed, which keeps the copies")
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith("GIT_")
        }
        variables |= {
            "GIT_DIR": str(self._repository),
            "GIT_WORK_TREE": str(self._workspace),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "LC_ALL": "C",
            "PATH": safe_search_path(avoid=[self._workspace]),
            **(more or {}),
        }
        if arguments[0] == "init":
            # A bare repository has no work tree.
            del variables["GIT_WORK_TREE"]
        command = [
            git,
            "-c",
            "gc.auto=0",
            "-c",
            "core.compression=1",
            "-c",
            "core.bare=false",
            *arguments,
        ]
        left = max(self._deadline - time.monotonic(), 0.1)
        try:
            ended = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                env=variables,
                cwd=self._workspace,
                timeout=left,
                check=False,
                # The copies are private, but files in the folder are created with the user's umask.
                umask=-1 if "-u" in arguments else 0o077,
            )
        except subprocess.TimeoutExpired:
            raise UndoError(
                f"{self._workspace} takes longer than {_COPY_SECONDS:g} s to copy"
            ) from None
        if ended.returncode != 0:
            reason = (
                " ".join(ended.stderr.decode(errors="replace").split())
                or f"exit code {ended.returncode}"
            )
            raise UndoError(f"git {arguments[0]}: {reason}")
        return ended.stdout


def _is_pipe(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat().st_mode
    except OSError:  # a broken link
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _digest(messages: Sequence[dict[str, Any]]) -> str:
    return hashlib.sha256(
        json.dumps(list(messages), sort_keys=True, default=str).encode()
    ).hexdigest()


def _changed_modes(start: Mapping[str, int], goal: Mapping[str, int]) -> dict[str, str]:
    """Return the files with different permissions, each with an empty entry."""
    return {path: "" for path in start.keys() & goal if start[path] != goal[path]}


def _file_names(path: Path) -> list[str]:
    """Return the name of a file, and the name of its target if it is a link."""
    try:
        return [path.name, path.resolve().name]
    except (OSError, ValueError, RuntimeError):  # an invalid name
        return [path.name]


def _in_the_way(paths: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the paths that are among the names, or in or above one of them.

    A file may have taken the place of a folder, or the reverse.
    """
    blocked = {name.rstrip("/") for name in names}
    above = {folder for name in blocked for folder in _folders(name)}
    return [
        path
        for path in paths
        if path in blocked or path in above or not blocked.isdisjoint(_folders(path))
    ]


def _folders(path: str) -> list[str]:
    return [path[:place] for place, character in enumerate(path) if character == "/"]


def _split(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def _joined(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _grouped(kept: Mapping[str, str]) -> dict[str, list[str]]:
    return {
        reason: sorted(name for name, other in kept.items() if other == reason)
        for reason in sorted(set(kept.values()))
    }


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
