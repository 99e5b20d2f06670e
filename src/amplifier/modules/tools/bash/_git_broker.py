"""Serves the git calls of a sandboxed command that write to a repository it can't change itself.

A ``git`` of ours is first in the search path of the command. It hands each call that may write over a
socket: arguments, folder and open streams. A thread for each call runs it in the git profile, so that
calls in a pipe run at once, and looks at the repository afterwards: what names a program and was not
there before is taken out.
"""

from __future__ import annotations

import array
import contextlib
import json
import logging
import os
import re
import select
import shlex
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from amplifier._internal.programs import is_below, isolated_python

from ..._shared.git_configuration import real_path
from ._git_call import (
    ADVICE,
    GitCall,
    Repository,
    Request,
    Surroundings,
    find_repository,
    is_seen,
    repository_of,
)
from ._git_client import MAX_FILES
from ._git_files import Finding, read_text, settings, take_out
from ._git_history import RepositorySteps, TrackedPlaces
from ._git_hooks import remove_tree, run_with_hooks
from ._git_steps import pending
from ._git_words import READING, Refused, Words, read_words
from ._own_files import folder_of
from ._places import inside_another

logger = logging.getLogger("amplifier.modules.tools")

SHIM_FOLDER = "/run/amplifier-git"
"""Where the command finds our git."""
_CLIENT = str(Path(__file__).with_name("_git_client.py"))
_MAX_CALL = 4 << 20
_MAX_FILE = 16 << 20
_MAX_CALLS = 64
"""At a time. Each has a thread and some processes."""
_LINGER = 2.0
_PLAIN = "plain"

# Options before the subcommand are skipped. What the broker would only send back is run at once.
_SHIM = """#!/bin/sh
skip=
for word; do
    if [ -n "$skip" ]; then skip=; continue; fi
    case $word in
    --version | --help | --exec-path | --html-path) exec {git} "$@" ;;
    -C | -c | --git-dir | --work-tree) skip=1 ;;
    -*) ;;
    {reading}) exec {git} "$@" ;;
    *) break ;;
    esac
done
exec {python} -I -S {client} {socket} {git} {folders} {roots} "$@"
"""


# Of the calls of all commands of this process.
_running: list[TrackedPlaces] = []
_running_lock = threading.Lock()


class GitBroker:
    """Serves the git calls of one command.

    Args:
        surroundings: What its calls have in common.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._free = threading.Semaphore(_MAX_CALLS)
        self._tracked: dict[Repository, TrackedPlaces] = {}
        self._indexes: dict[Repository, tuple[int, int] | None] = {}
        self.notes: list[str] = []
        self._stop_read, self._stop_write = os.pipe()

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Serve inside the context, which gets the options and the variables that show our git to the command."""
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._stop_read)
            stack.callback(os.close, self._stop_write)
            self._scratch = tempfile.mkdtemp(prefix="amplifier-git-")
            stack.callback(self._clean, self._scratch)
            shown = f"{self._scratch}/shown"
            Path(shown).mkdir()
            self._write_shim(shown)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            # By its descriptor: the path of a socket has about a hundred characters at most.
            with folder_of(f"{shown}/socket") as folder:
                listening.bind(f"/proc/self/fd/{folder}/socket")
            listening.listen(128)
            thread = threading.Thread(
                target=self._serve, args=(listening,), name="tool-bash git", daemon=True
            )
            thread.start()
            try:
                path = f"{SHIM_FOLDER}:{self._surroundings.environment['PATH']}"
                # The command's home is empty, and its commits are to be the user's all the same.
                variables = {"PATH": path, "GIT_CONFIG_SYSTEM": f"{SHIM_FOLDER}/gitconfig"}
                yield ["--ro-bind", shown, SHIM_FOLDER], variables
            finally:
                os.write(self._stop_write, b"!")
                thread.join()
                self._settle()
                with _running_lock:
                    for tracked in self._tracked.values():
                        _running.remove(tracked)

    def _clean(self, folder: str) -> None:
        if (problem := remove_tree(folder)) is not None:
            self.notes.append(f"{folder} could not be removed: {problem}")

    def _write_shim(self, folder: str) -> None:
        surroundings = self._surroundings
        shutil.copyfile(_CLIENT, f"{folder}/client.py")
        text = surroundings.profile.user_in_sandbox
        Path(folder, "gitconfig").write_text(text, encoding="utf-8", errors="surrogateescape")
        text = _SHIM.format(
            git=shlex.quote(surroundings.profile.git),
            reading=" | ".join(sorted(READING)),
            python=shlex.quote(isolated_python()),
            client=f"{SHIM_FOLDER}/client.py",
            socket=f"{SHIM_FOLDER}/socket",
            folders=shlex.quote(":".join(surroundings.temporary)),
            roots=shlex.quote(":".join(surroundings.roots)),
        )
        Path(folder, "git").write_text(text, encoding="utf-8")
        Path(folder, "git").chmod(0o755)

    # ── serving ──

    def _serve(self, listening: socket.socket) -> None:
        threads = list[threading.Thread]()
        while True:
            ready, _, _ = select.select([listening.fileno(), self._stop_read], [], [])
            if self._stop_read in ready:
                break
            connection, _ = listening.accept()
            self._free.acquire()
            thread = threading.Thread(
                target=self._serve_one, args=(connection,), name="tool-bash git call", daemon=True
            )
            thread.start()
            threads = [*(each for each in threads if each.is_alive()), thread]
        for thread in threads:
            thread.join()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            try:
                connection.settimeout(_LINGER)
                answer = self._answer(connection)
            except Exception:  # a thread that ends without an answer would leave the caller waiting
                logger.exception("tool bash: a git call failed")
                answer = "exit 125"
            finally:
                self._free.release()
            connection.sendall(answer.encode(errors="surrogateescape"))

    def _answer(self, connection: socket.socket) -> str:
        with contextlib.ExitStack() as stack:
            size, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(4 * (3 + MAX_FILES)))
            descriptors = array.array("i")
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
            length = int.from_bytes(size, "big")
            if len(size) != 4 or length > _MAX_CALL or len(descriptors) < 3:
                return "exit 125"
            text = bytearray()
            while len(text) < length:
                if not (data := connection.recv(min(1 << 16, length - len(text)))):
                    return "exit 125"
                text += data
            scratch = tempfile.mkdtemp(dir=self._scratch)
            stack.callback(self._clean, scratch)
            return self._answer_to(bytes(text), descriptors, scratch, connection.fileno())

    def _answer_to(
        self, text: bytes, descriptors: Sequence[int], scratch: str, connection: int
    ) -> str:
        """Run a call, or say how the caller runs it."""
        surroundings = self._surroundings
        try:
            arguments, directory, variables, files = json.loads(text)
        except ValueError:
            return "exit 125"
        is_right = (
            isinstance(directory, str) and isinstance(variables, dict) and isinstance(files, list)
        )
        if not is_right or not all(
            isinstance(word, str) and "\0" not in word for word in [*arguments, *files]
        ):
            return "exit 125"
        variables = {
            name: str(value) for name, value in variables.items() if re.fullmatch(r"[A-Z_]+", name)
        }
        streams = (descriptors[0], descriptors[1], descriptors[2])
        try:
            words = read_words(
                [*arguments], directory, variables, lambda name: self._alias(name, directory)
            )
        except Refused as error:
            with contextlib.suppress(OSError):
                os.write(
                    streams[2],
                    f"amplifier: {error}. {ADVICE.capitalize()}.\n".encode(errors="replace"),
                )
            return "exit 126"
        repository = None if words is None else self._repository(words)
        if words is None or repository is None:
            replaced = words is not None and words.is_alias
            return (
                f"{_PLAIN} {json.dumps(_as_plain(words))}"
                if replaced and words is not None
                else _PLAIN
            )
        copies = dict[str, str]()
        for path, descriptor in zip(files, descriptors[3:], strict=False):
            is_temporary = inside_another(path, surroundings.temporary) and not inside_another(
                path, surroundings.roots
            )
            if is_temporary and os.path.normpath(path) == path:
                copies[path] = f"{scratch}/file{len(copies)}"
                _copy(descriptor, copies[path])
        request = Request(words, variables, copies, streams, (connection, self._stop_read))
        call = GitCall(surroundings, repository, request, scratch, self.notes.append)
        return f"exit {call.run(self._tracked_in, run_with_hooks)}"

    # ── which calls ──

    def _alias(self, name: str, directory: str) -> str | None:
        repository = find_repository(real_path(directory))
        text = read_text(f"{repository.common}/config") if repository is not None else None
        pairs = settings(text) if text is not None and "alias" in text.lower() else None
        own = {
            key.partition(".")[2]: value for key, value in pairs or () if key.startswith("alias.")
        }
        return own.get(name.lower(), self._surroundings.profile.aliases.get(name.lower()))

    def _repository(self, words: Words) -> Repository | None:
        """Return the protected repository that a call may change; None if the real git is to run it."""
        places, roots = self._surroundings.places, self._surroundings.roots
        if not words.is_writing or not any(
            is_below(real_path(words.directory), root) for root in roots
        ):
            return None
        repository = repository_of(words)
        if repository is None:
            return None
        if not is_seen(places, repository.worktree):
            return None
        covered = places.repositories
        is_covered = any(
            is_below(repository.common, path) or is_below(path, repository.common)
            for path in covered
        )
        # A push may be to another repository here.
        if is_covered or (covered and words.subcommand == "push"):
            return repository
        # The folder of the agent may be a part of a larger work tree. What is in it and not covered, the command can change.
        is_around = any(is_below(root, repository.worktree) for root in roots) and not any(
            is_below(repository.common, root) for root in roots
        )
        is_visible = is_seen(places, repository.common) and is_seen(places, repository.folder)
        return repository if is_around and is_visible else None

    def _tracked_in(self, repository: Repository) -> TrackedPlaces:
        """Return the protected files of a work tree that git may write; the same for all calls of the command."""
        surroundings = self._surroundings
        with _running_lock:
            if repository not in self._tracked:
                self._indexes[repository] = _times(f"{repository.folder}/index")
                found = [
                    path
                    for path in surroundings.places.protected
                    if path not in surroundings.places.repositories
                    and surroundings.obeyed(path)
                    and is_below(path, repository.worktree)
                    and (around := find_repository(os.path.dirname(path))) is not None  # noqa: PTH120
                    and around.worktree == repository.worktree
                ]
                steps = next(
                    (
                        each.steps
                        for each in _running
                        if each.steps is not None and each.steps.common == repository.common
                    ),
                    None,
                ) or RepositorySteps(repository.common, frozenset(pending(repository.common)))
                self._tracked[repository] = TrackedPlaces(
                    found, surroundings.baselines.contents, _running, steps
                )
                _running.append(self._tracked[repository])
            return self._tracked[repository]

    def tracked(self) -> list[str]:
        """Return the protected places that git was allowed to write."""
        return [place for tracked in self._tracked.values() for place in tracked.places]

    def of_the_user(self, places: Iterable[str]) -> list[str]:
        """Return those of some new protected places that git has made as the user had them."""
        commons = {repository.common for repository in self._tracked}
        found, around = list[str](), dict[Repository, list[str]]()
        for place in places:
            repository = find_repository(os.path.dirname(place))  # noqa: PTH120 - text in, text out
            if repository is not None and repository.common in commons:
                around.setdefault(repository, []).append(place)
        for repository, inside in around.items():
            with contextlib.suppress(OSError, Refused), self._call(repository) as call:
                found += call.of_the_user(inside)
        return found

    def _settle(self) -> None:
        """Look once more at files that git may write: a command can write what git has just replaced."""
        for repository, tracked in self._tracked.items():
            if tracked.places and tracked.is_changed():
                try:
                    with self._call(repository) as call:
                        call.settle_alone(tracked)
                except (OSError, Refused):
                    logger.exception("tool bash: what git wrote could not be compared")
                    # They are judged like what a command has written.
                    tracked.places.clear()
            self._unstage(repository)
            if tracked.steps is not None:
                self.notes += self.take_out_steps(repository, tracked.steps.known)

    def _unstage(self, repository: Repository) -> None:
        if self._indexes.get(repository) == _times(f"{repository.folder}/index"):
            return
        try:
            with self._call(repository) as call:
                self.notes += call.unstage()
        except (OSError, Refused) as error:
            note = f"{repository.worktree}: what is staged can't be told: {error}"
            self.notes.append(f"{note}; look at it before you commit")

    def take_out_steps(self, repository: Repository, known: Container[Finding]) -> list[str]:
        """Take out the steps of a rebase or a merge that would write what programs obey; returns sentences about them.

        Args:
            repository: The repository.
            known: The files with steps that were there before.
        """
        found = [each for each in pending(repository.common) if each not in known]
        if not found:
            return []
        if not os.path.isdir(repository.worktree):  # noqa: PTH112 - text in
            # A work tree that was removed since. Any folder that is there does for reading.
            repository = attrs.evolve(repository, worktree=os.path.dirname(repository.common))  # noqa: PTH120
        try:
            with self._call(repository) as call:
                return call.take_out_steps(found)
        except (OSError, Refused) as error:
            reason = f"what it would write can't be told: {error}"
            return take_out([attrs.evolve(each, reason=reason) for each in found])

    @contextlib.contextmanager
    def _call(self, repository: Repository) -> Iterator[GitCall]:
        """Have a call of our own, after those of the command."""
        words = Words(
            options=(),
            directory=repository.worktree,
            git_dir=None,
            work_tree=None,
            subcommand="status",
            rest=(),
        )
        with (
            tempfile.TemporaryDirectory(prefix="amplifier-git-") as scratch,
            Path(os.devnull).open("rb+") as null,
        ):
            request = Request(words, {}, {}, (null.fileno(), null.fileno(), null.fileno()), ())
            yield GitCall(self._surroundings, repository, request, scratch, self.notes.append)


def _times(path: str) -> tuple[int, int] | None:
    """Return what changes when git writes a file anew."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _as_plain(words: Words) -> list[str]:
    """Return a call whose alias was replaced."""
    folders = ["-C", words.directory]
    folders += [] if words.git_dir is None else [f"--git-dir={words.git_dir}"]
    folders += [] if words.work_tree is None else [f"--work-tree={words.work_tree}"]
    return [*folders, *words.command()]


def _copy(descriptor: int, target: str) -> None:
    # Anything else than a file could keep this thread waiting.
    left = _MAX_FILE if stat.S_ISREG(os.fstat(descriptor).st_mode) else 0
    with Path(target).open("wb") as file:
        while left and (data := os.read(descriptor, min(1 << 16, left))):
            file.write(data)
            left -= len(data)
