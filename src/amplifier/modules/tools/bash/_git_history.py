"""Tells the content that a user's repository had from what an agent committed, for files that programs obey.

git may write a protected file of the work tree, because switching branches needs it. A commit of the
agent's must not bring another content there without a question. A record for each repository, where
commands can't reach it, has the commits that refs led to before the first call, the ones that appeared
between calls, which the user made, and the ones that calls left.
"""

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
from ._own_files import folder_of

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_PACKED = 64 << 20
_MAX_TIPS = 20_000
_MAX_FILES = 500
_MAX_BYTES = 16 << 20

State: TypeAlias = tuple[str, str]
"""The mode of a file and the name of its content, as git writes them; of a missing one the first is ``000000``."""
MISSING = "000000"


# ── commits ───────────────────────────────────────────────────────────────────────────────────────


def _tips(git: str) -> set[str]:
    """Return the commits that refs of a repository lead to; read without git, which takes longer."""
    found = {*_ID.findall(read_text(f"{git}/packed-refs", _MAX_PACKED) or "")}
    heads = [f"{git}/HEAD", *(f"{folder.path}/HEAD" for folder in _entries(f"{git}/worktrees"))]
    # Each stash but the last one is in its log only.
    for path in (*heads, f"{git}/logs/refs/stash"):
        found |= {*_ID.findall(read_text(path, _MAX_PACKED) or "")}
    pending = [f"{git}/refs"]
    for folder in pending:  # grows
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                found |= {*_ID.findall(read_text(entry.path) or "")}
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


@attrs.define
class _Record:
    """What is known of a repository.

    Attributes:
        users: Commits that the user made, each group with the number of those in `left` at that time.
        left: Every commit that a call left, in order.
        is_open: Whether calls were running, or commands could commit without one.
    """

    users: list[tuple[list[str], int]]
    left: list[str]
    is_open: bool = False


class UsersHistory:
    """The commits of one repository that the agent has not made.

    Args:
        number: The inode of its git folder. A command may move the folder, and a restart may number
            devices anew.
    """

    def __init__(self, number: int) -> None:
        self._path = default_sessions_directory().parent / "git" / f"{number}.json"
        self._record: _Record | None = None

    @contextlib.contextmanager
    def during_call(self, opened: str) -> Iterator[None]:
        """Note inside the context that a call may change the refs.

        Args:
            opened: The git folder, which is open.
        """
        try:
            file = self._open()
        except OSError:
            # Without a record nothing is known to be the user's.
            yield
            return
        with file:
            with contextlib.suppress(BlockingIOError), self._turn():
                # Alone: what is new now was made by no call.
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
        """Note that commands change the repository on their own, so that no commit until the next call is the user's.

        Raises:
            OSError: There is no place for the record.
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
        # Others that still run keep the record open.
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
        return open(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")  # noqa: PTH123

    def tips(self) -> list[str]:
        """Return the commits of the user that are known, without those before them."""
        groups = [] if self._record is None else self._record.users
        return [commit for tips, _ in groups for commit in tips]

    def has(self, path: str, state: State, log: Callable[[str, list[str]], str]) -> bool:
        """Check whether a commit of the user's has a file like this.

        Args:
            path: The file, from the top of the work tree.
            state: What it is now.
            log: Returns the changes of a path by some commits, as ``git log --raw`` prints them.
        """
        if self._record is None:
            return False
        earlier = list[str]()
        for tips, number in self._record.users:
            left = self._record.left[:number]
            before, after = _states(log(path, [*tips, *(f"^{commit}" for commit in left)]))
            # What the first commits of all were made from is the user's, too.
            if state in after or (number == 0 and state in before):
                # A commit that takes the place of one of the agent's has the content of that one.
                # A merge has it because the user merged it.
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
    """Return the states of a file before and after the changes of some commits; of missing ones only the mode counts."""
    found = re.findall(r"^:(\d+) (\d+) (\w+) (\w+) ", rows, re.MULTILINE)
    missing = {MISSING: (MISSING, "")}
    return (
        {missing.get(mode, (mode, name)) for mode, _, name, _ in found},
        {missing.get(mode, (mode, name)) for _, mode, _, name in found},
    )


def _reconciled(record: _Record | None, tips: set[str]) -> _Record:
    if record is None:
        return _Record([(sorted(tips), 0)], [])
    known = {*record.left, *(tip for group, _ in record.users for tip in group)}
    new = sorted(tips - known)
    if record.is_open:
        # The agent was killed while a call ran, or commands needed none, so nobody can tell whose these are.
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
    """The files with steps that a repository had.

    Attributes:
        common: Its git folder.
        known: The files.
    """

    common: str
    known: frozenset[Finding]


@attrs.frozen
class File:
    """A file as git sees it: its mode, and what is in it."""

    mode: str
    data: bytes

    def state(self, algorithm: str) -> State:
        """Return the mode and the name of the content."""
        if self.mode == MISSING:
            return self.mode, ""
        digest = hashlib.new(algorithm, b"blob %d\0" % len(self.data), usedforsecurity=False)
        digest.update(self.data)
        return self.mode, digest.hexdigest()


_NONE = File(MISSING, b"")


class TrackedPlaces:
    """Protected files and folders of one work tree that git may write, with what is in them.

    Args:
        places: Those that are tracked.
        known: Contents that were in place when commands could not change them. Grows.
        others: Those of other commands that run now. What is in a file may be what their calls have just written.
        steps: What the repository had to do when the first of the commands that run now called git.
    """

    def __init__(
        self,
        places: Iterable[str],
        known: set[tuple[str, File]],
        others: Iterable[TrackedPlaces] = (),
        steps: RepositorySteps | None = None,
    ) -> None:
        self._files: dict[str, File] = {}
        self.places: list[str] = []
        self.steps = steps
        self._known = known
        running = [*others]
        for place in places:
            found = files_at(place)
            for other in running:
                if place in other.places:
                    found = {p: file for p, file in other._files.items() if is_below(p, place)}
            if found is not None:
                self.places.append(place)
                self._files |= found
        known |= {*self._files.items()}

    def is_changed(self) -> bool:
        """Check whether anything is not what it was when it was last settled."""
        return self._now() != self._files

    def _now(self) -> dict[str, File]:
        now = dict[str, File]()
        for place in self.places:
            found = files_at(place)
            # What is too much to be read is not the user's either.
            now |= {place: File("too much", b"")} if found is None else found
        return now

    def settle(
        self, is_users: Callable[[str, State], bool], algorithm: str
    ) -> tuple[list[str], bool]:
        """Put back what changed to a content that is not the user's.

        Args:
            is_users: Judges a path and what is there.
            algorithm: What names contents in the repository.

        Returns:
            Sentences about what changed, and whether something was put back.
        """
        notes, is_put_back = list[str](), False
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
            is_put_back = True
            try:
                notes += _put_back(path, before)
            except OSError as error:
                notes.append(f"{path} could not be put back: {error.strerror}; look at it")
        self._files = {path: file for path, file in self._files.items() if file != _NONE}
        return notes, is_put_back


def _put_back(path: str, file: File) -> list[str]:
    reason = "programs obey it, and no commit of the user's has this content"
    notes = (
        set_aside(path, reason) if os.path.lexists(path) else [f"{path}: was removed ({reason})"]
    )
    if file != _NONE:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with folder_of(path) as folder:
            name = os.path.basename(path)  # noqa: PTH119 - text in, text out
            if file.mode == "120000":
                os.symlink(file.data, os.fsencode(name), dir_fd=folder)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                mode = 0o755 if file.mode == "100755" else 0o644
                with open(os.open(name, flags, mode, dir_fd=folder), "wb") as target:  # noqa: PTH123
                    target.write(file.data)
        notes = [f"{note}, and what was there is back" for note in notes]
    return notes


def files_at(place: str) -> dict[str, File] | None:
    """Return the files at and below a place; None if they are too many, or none that git has."""
    found, pending, size = dict[str, File](), [place], 0
    for path in pending:  # grows
        try:
            with folder_of(path) as folder:
                name = os.path.basename(path)  # noqa: PTH119 - text in, text out
                mode = os.lstat(name, dir_fd=folder).st_mode
                if stat.S_ISLNK(mode):
                    found[path] = File("120000", os.fsencode(os.readlink(name, dir_fd=folder)))
                elif stat.S_ISDIR(mode):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    descriptor = os.open(name, flags, dir_fd=folder)
                    try:
                        pending += [f"{path}/{each}" for each in os.listdir(descriptor)]  # noqa: PTH208 - by its descriptor
                    finally:
                        os.close(descriptor)
                elif stat.S_ISREG(mode):
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    with open(os.open(name, flags, dir_fd=folder), "rb") as file:  # noqa: PTH123
                        data = file.read(_MAX_BYTES + 1)
                    found[path] = File("100755" if mode & 0o100 else "100644", data)
                    size += len(data)
                else:
                    return None
        except FileNotFoundError:
            continue
        except OSError:
            return None
        if size > _MAX_BYTES or len(pending) > _MAX_FILES:
            return None
    return found
