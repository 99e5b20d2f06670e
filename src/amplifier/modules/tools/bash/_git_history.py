"""Tell commits of the user from commits of the agent, for protected files that git may write."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

import attrs

from amplifier._internal.programs import is_below

from ..._shared.session import default_sessions_directory
from ._git_files import Finding, read_text, set_aside
from ._protected_paths import folder_of

# git may write a protected file of the work tree, because switching branches needs that. A commit
# of the agent must not bring new content there without a question. So there is a record for each
# repository, which commands can't reach. It has the commits of the refs before the first call, the
# commits that appeared between calls, which the user made, and the commits that calls left.

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_PACKED = 64 << 20
_MAX_TIPS = 20_000
_MAX_FILES = 500
_MAX_BYTES = 16 << 20

State: TypeAlias = tuple[str, str]
"""The mode of a file and the hash of its content, as git writes them."""
MISSING = "000000"
"""The mode of a missing file."""


# ── commits ───────────────────────────────────────────────────────────────────────────────────────


def _tips(git: str) -> set[str]:
    """Return the commits of a repository's refs. Reading them without git is faster."""
    commits = {*_ID.findall(read_text(f"{git}/packed-refs", _MAX_PACKED) or "")}
    heads = [f"{git}/HEAD", *(f"{folder.path}/HEAD" for folder in _entries(f"{git}/worktrees"))]
    # Only the log has the stashes before the last one.
    for path in (*heads, f"{git}/logs/refs/stash"):
        commits |= {*_ID.findall(read_text(path, _MAX_PACKED) or "")}
    pending = [f"{git}/refs"]
    for folder in pending:  # grows
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                commits |= {*_ID.findall(read_text(entry.path) or "")}
    return commits


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


@attrs.define
class _Record:
    """The record of a repository.

    Attributes:
        users: Groups of commits of the user, each with the length of `left` at that time.
        left: The commits that calls left, in order.
        is_open: True if calls were running, or commands could commit without a call.
    """

    users: list[tuple[list[str], int]]
    left: list[str]
    is_open: bool = False


class UsersHistory:
    """The commits of one repository that the agent has not made.

    Args:
        number: The inode of its git folder. It identifies the folder, because a command may move
            the folder and a restart may change the number of the device.
    """

    def __init__(self, number: int) -> None:
        self._path = default_sessions_directory().parent / "git" / f"{number}.json"
        self._record: _Record | None = None

    @contextlib.contextmanager
    def during_call(self, opened: str) -> Iterator[None]:
        """Record that a call inside the context may change the refs.

        Args:
            opened: The git folder by its descriptor, a path in ``/proc/self/fd``.
        """
        try:
            file = self._open()
        except OSError:
            # Without a record no commit counts as the user's.
            yield
            return
        with file:
            with contextlib.suppress(BlockingIOError), self._turn():
                # No other call is running, so no call has made the commits that are new now.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._record = _reconciled(_read(file), _tips(opened))
                self._record.is_open = True
                _write(file, self._record)
            fcntl.flock(file, fcntl.LOCK_SH)
            self._record = self._record or _read(file)
            try:
                yield
            finally:
                with self._turn():
                    self._close_call(file, opened)

    def disown(self) -> None:
        """Record that commands change the repository without calls.

        No commit from then until the next call counts as the user's.

        Raises:
            OSError: The record can't be written.
        """
        with self._open() as file, self._turn():
            record = _read(file) or _Record([], [])
            record.is_open = True
            _write(file, record)

    def _close_call(self, file: IO[bytes], opened: str) -> None:
        record = _read(file)
        if record is None:
            return
        record.left += sorted(_tips(opened) - {*record.left})
        # Other running calls keep the record open.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record.is_open = False
        _write(file, record)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Keep other processes from writing the record at the same time."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _open(self) -> IO[bytes]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")

    def tips(self) -> list[str]:
        """Return the latest commits of the user, without their history."""
        groups = [] if self._record is None else self._record.users
        return [commit for tips, _ in groups for commit in tips]

    def has(self, path: str, state: State, log: Callable[[str, list[str]], str]) -> bool:
        """Return whether a commit of the user has a file in a certain state.

        Args:
            path: The file, relative to the top of the work tree.
            state: The present state of the file.
            log: Returns the changes of a path by some commits, as ``git log --raw`` prints them.
        """
        if self._record is None:
            return False
        earlier = list[str]()
        for tips, number in self._record.users:
            left = self._record.left[:number]
            before, after = _states(log(path, [*tips, *(f"^{commit}" for commit in left)]))
            # The states before the very first commits are the user's, too.
            if state in after or (number == 0 and state in before):
                # A commit that replaces one of the agent has the content of that commit. In a
                # merge, the user has accepted the content.
                is_agents = (
                    bool(left)
                    and state[0] != MISSING
                    and state in _states(log(path, [*left, *(f"^{tip}" for tip in earlier)]))[1]
                    and state
                    not in _states(log(path, [*tips, *(f"^{tip}" for tip in left), "--merges"]))[1]
                )
                if not is_agents:
                    return True
            earlier += tips
        return False


def _states(rows: str) -> tuple[set[State], set[State]]:
    """Return the states of a file before and after the changes of some commits.

    A missing file has no hash.
    """
    changes = re.findall(r"^:(\d+) (\d+) (\w+) (\w+) ", rows, re.MULTILINE)
    missing = {MISSING: (MISSING, "")}
    return (
        {missing.get(mode, (mode, name)) for mode, _, name, _ in changes},
        {missing.get(mode, (mode, name)) for _, mode, _, name in changes},
    )


def _reconciled(record: _Record | None, tips: set[str]) -> _Record:
    if record is None:
        return _Record([(sorted(tips), 0)], [])
    known = {*record.left, *(tip for group, _ in record.users for tip in group)}
    new = sorted(tips - known)
    if record.is_open:
        # The agent was killed during a call, or commands could commit without one. So the author of
        # these commits is unknown.
        record.left += new
    elif new and len(known) < _MAX_TIPS:
        record.users.append((new, len(record.left)))
    return record


def _read(file: IO[bytes]) -> _Record | None:
    file.seek(0)
    try:
        value: Any = json.loads(file.read())
        return _Record(
            [(group, number) for group, number in value["users"]], value["left"], value["open"]
        )
    except (ValueError, KeyError, TypeError):
        return None


def _write(file: IO[bytes], record: _Record) -> None:
    text = json.dumps({"users": record.users, "left": record.left, "open": record.is_open})
    file.seek(0)
    file.write(text.encode())
    file.truncate()
    file.flush()


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class RepositorySteps:
    """The files with steps that a repository had before the calls.

    Attributes:
        common: The git folder of the repository.
        known: The files.
    """

    common: str
    known: frozenset[Finding]


@attrs.frozen
class File:
    """The mode and the content of a file, as git stores them."""

    mode: str
    data: bytes

    def state(self, algorithm: str) -> State:
        """Return the mode and the hash of the content."""
        if self.mode == MISSING:
            return self.mode, ""
        digest = hashlib.new(algorithm, b"blob %d\0" % len(self.data), usedforsecurity=False)
        digest.update(self.data)
        return self.mode, digest.hexdigest()


_NONE = File(MISSING, b"")


class TrackedFiles:
    """Protected files and folders of one work tree that git may write, with their content.

    Args:
        paths: The files and folders.
        known: Files with content that was there when commands could not change it. More are added.
        others: The tracked files of other running commands. Their calls may just have written the
            present content.
        steps: The steps of the repository at the first call of the running commands.

    Attributes:
        paths: The files and folders that could be read.
        steps: The argument `steps`.
    """

    def __init__(
        self,
        paths: Iterable[str],
        known: set[tuple[str, File]],
        others: Iterable[TrackedFiles] = (),
        steps: RepositorySteps | None = None,
    ) -> None:
        self._files: dict[str, File] = {}
        self.paths: list[str] = []
        self.steps = steps
        self._known = known
        running = [*others]
        for path in paths:
            files = files_at(path)
            for other in running:
                if path in other.paths:
                    files = {p: file for p, file in other._files.items() if is_below(p, path)}
            if files is not None:
                self.paths.append(path)
                self._files |= files
        known |= {*self._files.items()}

    def is_changed(self) -> bool:
        """Return whether a file has changed since the last check."""
        return self._now() != self._files

    def _now(self) -> dict[str, File]:
        now = dict[str, File]()
        for path in self.paths:
            files = files_at(path)
            # Content that is too large to read doesn't count as the user's.
            now |= {path: File("too much", b"")} if files is None else files
        return now

    def settle(
        self, is_users: Callable[[str, State], bool], algorithm: str
    ) -> tuple[list[str], bool]:
        """Restore files whose new content isn't the user's.

        Args:
            is_users: Returns whether a path had a state in a commit of the user.
            algorithm: The hash algorithm of the repository.

        Returns:
            Sentences about the changed files, and whether a file was restored.
        """
        notes, is_restored = list[str](), False
        now = self._now()
        for path in sorted({*now, *self._files}):
            before, after = self._files.get(path, _NONE), now.get(path, _NONE)
            if before == after:
                continue
            if (path, after) in self._known or is_users(path, after.state(algorithm)):
                self._known.add((path, after))
                self._files[path] = after
                notes.append(f"{path}: git changed it to a content that the repository had")
                continue
            is_restored = True
            try:
                notes += _restore(path, before)
            except OSError as error:
                notes.append(f"{path} could not be restored: {error.strerror}; look at it")
        self._files = {path: file for path, file in self._files.items() if file != _NONE}
        return notes, is_restored


def _restore(path: str, file: File) -> list[str]:
    reason = "programs obey it, and no commit of the user's has this content"
    notes = (
        set_aside(path, reason) if os.path.lexists(path) else [f"{path}: was removed ({reason})"]
    )
    if file != _NONE:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with folder_of(path) as folder:
            name = os.path.basename(path)  # noqa: PTH119 — text in, text out
            if file.mode == "120000":
                os.symlink(file.data, os.fsencode(name), dir_fd=folder)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                mode = 0o755 if file.mode == "100755" else 0o644
                with os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb") as target:
                    target.write(file.data)
        notes = [f"{note}, and the former content was restored" for note in notes]
    return notes


def files_at(top: str) -> dict[str, File] | None:
    """Return a file, or the files below a folder.

    Returns:
        The files by path. None if they are too many or too large, or of a kind that git can't have.
    """
    files, pending, size = dict[str, File](), [top], 0
    for path in pending:  # grows
        try:
            with folder_of(path) as folder:
                name = os.path.basename(path)  # noqa: PTH119 — text in, text out
                mode = os.lstat(name, dir_fd=folder).st_mode
                if stat.S_ISLNK(mode):
                    files[path] = File("120000", os.fsencode(os.readlink(name, dir_fd=folder)))
                elif stat.S_ISDIR(mode):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    descriptor = os.open(name, flags, dir_fd=folder)
                    try:
                        names = os.listdir(descriptor)  # noqa: PTH208 — by its descriptor
                        pending += [f"{path}/{child}" for child in names]
                    finally:
                        os.close(descriptor)
                elif stat.S_ISREG(mode):
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    with open(os.open(name, flags, dir_fd=folder), "rb") as file:  # noqa: PTH123
                        data = file.read(_MAX_BYTES + 1)
                    files[path] = File("100755" if mode & 0o100 else "100644", data)
                    size += len(data)
                else:
                    return None
        except FileNotFoundError:
            continue
        except OSError:
            return None
        if size > _MAX_BYTES or len(pending) > _MAX_FILES:
            return None
    return files
