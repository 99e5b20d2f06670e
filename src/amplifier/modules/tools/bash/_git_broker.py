"""Serve the git calls of a command that write to a repository that it can't change itself."""

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
from ._git_arguments import READING, ParsedCall, Refused, parse_call
from ._git_call import (
    ADVICE,
    CallContext,
    GitCall,
    Repository,
    Request,
    find_repository,
    is_visible,
    repository_of,
)
from ._git_client import MAX_FILES
from ._git_files import Finding, read_text, settings, take_out
from ._git_history import RepositorySteps, TrackedFiles
from ._git_hooks import remove_tree, run_with_hooks
from ._git_steps import pending
from ._protected_paths import folder_of
from ._sandbox_paths import inside_another

# The search path of the command begins with our ``git``. For each call that may write, our ``git``
# sends the arguments, the folder and the open streams over a socket. A thread runs each call in the
# git profile, so that the calls of a pipe run at the same time. Afterwards the repository is
# checked, and new settings and files that name programs are removed.

logger = logging.getLogger("amplifier.modules.tools")

SHIM_FOLDER = "/run/amplifier-git"
"""The folder of our git in the sandbox."""
_CLIENT = str(Path(__file__).with_name("_git_client.py"))
_MAX_CALL = 4 << 20
_MAX_FILE = 16 << 20
_MAX_CALLS = 64
"""Maximum number of calls at the same time. Each has a thread and some processes."""
_REQUEST_SECONDS = 2.0
_PLAIN = "plain"
"""The reply to a call that the command has to run itself."""

# Options before the subcommand are skipped. Calls that only read are run without the broker.
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


# These are the tracked files of the running calls of all commands of this process.
_running: list[TrackedFiles] = []
_running_lock = threading.Lock()


class GitBroker:
    """Serves the git calls of one command.

    Args:
        context: The data that its calls share.

    Attributes:
        notes: Sentences about changes of repositories.
    """

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._free = threading.Semaphore(_MAX_CALLS)
        self._tracked: dict[Repository, TrackedFiles] = {}
        self._indexes: dict[Repository, tuple[int, int] | None] = {}
        self.notes: list[str] = []
        self._stop_read, self._stop_write = os.pipe()

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Serve calls inside the context.

        The context yields the options for bubblewrap and the environment variables with which the
        command finds our git.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._stop_read)
            stack.callback(os.close, self._stop_write)
            self._scratch = tempfile.mkdtemp(prefix="amplifier-git-")
            stack.callback(self._clean, self._scratch)
            shown = f"{self._scratch}/shown"
            Path(shown).mkdir()
            self._write_shim(shown)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            # The path of a socket is limited to about a hundred characters, so it starts at the
            # descriptor of the folder.
            with folder_of(f"{shown}/socket") as folder:
                listening.bind(f"/proc/self/fd/{folder}/socket")
            listening.listen(128)
            thread = threading.Thread(
                target=self._serve, args=(listening,), name="tool-bash git", daemon=True
            )
            thread.start()
            try:
                path = f"{SHIM_FOLDER}:{self._context.environment['PATH']}"
                # The home folder of the command is empty, but its commits should have the user's
                # name.
                variables = {"PATH": path, "GIT_CONFIG_SYSTEM": f"{SHIM_FOLDER}/gitconfig"}
                yield ["--ro-bind", shown, SHIM_FOLDER], variables
            finally:
                os.write(self._stop_write, b"!")
                thread.join()
                self._check_tracked()
                with _running_lock:
                    for tracked in self._tracked.values():
                        _running.remove(tracked)

    def _clean(self, folder: str) -> None:
        if (problem := remove_tree(folder)) is not None:
            self.notes.append(f"{folder} could not be removed: {problem}")

    def _write_shim(self, folder: str) -> None:
        context = self._context
        shutil.copyfile(_CLIENT, f"{folder}/client.py")
        text = context.profile.user_in_sandbox
        Path(folder, "gitconfig").write_text(text, encoding="utf-8", errors="surrogateescape")
        text = _SHIM.format(
            git=shlex.quote(context.profile.git),
            reading=" | ".join(sorted(READING)),
            python=shlex.quote(isolated_python()),
            client=f"{SHIM_FOLDER}/client.py",
            socket=f"{SHIM_FOLDER}/socket",
            folders=shlex.quote(":".join(context.temporary)),
            roots=shlex.quote(":".join(context.roots)),
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
            threads = [*(other for other in threads if other.is_alive()), thread]
        for thread in threads:
            thread.join()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            try:
                connection.settimeout(_REQUEST_SECONDS)
                reply = self._reply(connection)
            except Exception:
                # Without a reply the caller would wait indefinitely.
                logger.exception("tool bash: a git call failed")
                reply = "exit 125"
            finally:
                self._free.release()
            connection.sendall(reply.encode(errors="surrogateescape"))

    def _reply(self, connection: socket.socket) -> str:
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
            return self._run(bytes(text), descriptors, scratch, connection.fileno())

    def _run(self, text: bytes, descriptors: Sequence[int], scratch: str, connection: int) -> str:
        """Run a call and return the reply, or return the arguments for the caller to run."""
        context = self._context
        try:
            arguments, directory, variables, files = json.loads(text)
        except ValueError:
            return "exit 125"
        is_valid = (
            isinstance(directory, str) and isinstance(variables, dict) and isinstance(files, list)
        )
        if not is_valid or not all(
            isinstance(word, str) and "\0" not in word for word in [*arguments, *files]
        ):
            return "exit 125"
        variables = {
            name: str(value) for name, value in variables.items() if re.fullmatch(r"[A-Z_]+", name)
        }
        streams = (descriptors[0], descriptors[1], descriptors[2])
        try:
            parsed = parse_call(
                [*arguments], directory, variables, lambda name: self._alias(name, directory)
            )
        except Refused as error:
            with contextlib.suppress(OSError):
                os.write(
                    streams[2],
                    f"amplifier: {error}. {ADVICE.capitalize()}.\n".encode(errors="replace"),
                )
            return "exit 126"
        repository = None if parsed is None else self._repository(parsed)
        if parsed is None or repository is None:
            if parsed is not None and parsed.is_alias:
                return f"{_PLAIN} {json.dumps(_plain_arguments(parsed))}"
            return _PLAIN
        copies = dict[str, str]()
        for path, descriptor in zip(files, descriptors[3:], strict=False):
            is_temporary = inside_another(path, context.temporary) and not inside_another(
                path, context.roots
            )
            if is_temporary and os.path.normpath(path) == path:
                copies[path] = f"{scratch}/file{len(copies)}"
                _copy(descriptor, copies[path])
        request = Request(parsed, variables, copies, streams, (connection, self._stop_read))
        call = GitCall(context, repository, request, scratch, self.notes.append)
        return f"exit {call.run(self._tracked_in, run_with_hooks)}"

    # ── which calls ──

    def _alias(self, name: str, directory: str) -> str | None:
        repository = find_repository(real_path(directory))
        text = read_text(f"{repository.common}/config") if repository is not None else None
        pairs = settings(text) if text is not None and "alias" in text.lower() else None
        own = {
            key.partition(".")[2]: value for key, value in pairs or () if key.startswith("alias.")
        }
        return own.get(name.lower(), self._context.profile.aliases.get(name.lower()))

    def _repository(self, parsed: ParsedCall) -> Repository | None:
        """Return the protected repository that a call may change, or None if it needs no broker."""
        view, roots = self._context.view, self._context.roots
        if not parsed.is_writing or not any(
            is_below(real_path(parsed.directory), root) for root in roots
        ):
            return None
        repository = repository_of(parsed)
        if repository is None:
            return None
        if not is_visible(view, repository.worktree):
            return None
        covered = view.repositories
        is_covered = any(
            is_below(repository.common, path) or is_below(path, repository.common)
            for path in covered
        )
        # A push may go to another repository on this machine.
        if is_covered or (covered and parsed.subcommand == "push"):
            return repository
        # The roots may be inside a larger work tree. The command can change everything in the roots
        # that isn't covered.
        is_around = any(is_below(root, repository.worktree) for root in roots) and not any(
            is_below(repository.common, root) for root in roots
        )
        folders = (repository.common, repository.folder)
        return repository if is_around and all(is_visible(view, path) for path in folders) else None

    def _tracked_in(self, repository: Repository) -> TrackedFiles:
        """Return the protected files of a work tree that git may write.

        They are the same for all calls of the command.
        """
        context = self._context
        with _running_lock:
            if repository not in self._tracked:
                self._indexes[repository] = _index_times(repository)
                paths = [
                    path
                    for path in context.view.protected
                    if path not in context.view.repositories
                    and context.is_obeyed(path)
                    and is_below(path, repository.worktree)
                    and _is_in_work_tree(path, repository)
                ]
                steps = next(
                    (
                        other.steps
                        for other in _running
                        if other.steps is not None and other.steps.common == repository.common
                    ),
                    None,
                ) or RepositorySteps(repository.common, frozenset(pending(repository.common)))
                self._tracked[repository] = TrackedFiles(
                    paths, context.baselines.contents, _running, steps
                )
                _running.append(self._tracked[repository])
            return self._tracked[repository]

    def tracked(self) -> list[str]:
        """Return the protected paths that git was allowed to write."""
        return [path for tracked in self._tracked.values() for path in tracked.paths]

    def of_the_user(self, paths: Iterable[str]) -> list[str]:
        """Return the new protected paths that git has made from content of the user."""
        commons = {repository.common for repository in self._tracked}
        result, around = list[str](), dict[Repository, list[str]]()
        for path in paths:
            repository = find_repository(os.path.dirname(path))  # noqa: PTH120 — text in, text out
            if repository is not None and repository.common in commons:
                around.setdefault(repository, []).append(path)
        for repository, inside in around.items():
            with contextlib.suppress(OSError, Refused), self._call(repository) as call:
                result += call.of_the_user(inside)
        return result

    def _check_tracked(self) -> None:
        """Check once more the files that git may write.

        A command can write to a file that git has just replaced.
        """
        for repository, tracked in self._tracked.items():
            if tracked.paths and tracked.is_changed():
                try:
                    with self._call(repository) as call:
                        call.settle_alone(tracked)
                except (OSError, Refused):
                    logger.exception("tool bash: the files that git wrote could not be compared")
                    # After this they are checked like files that the command has written.
                    tracked.paths.clear()
            self._unstage(repository)
            if tracked.steps is not None:
                self.notes += self.take_out_steps(repository, tracked.steps.known)

    def _unstage(self, repository: Repository) -> None:
        if self._indexes.get(repository) == _index_times(repository):
            return
        try:
            with self._call(repository) as call:
                self.notes += call.unstage()
        except (OSError, Refused) as error:
            note = f"{repository.worktree}: the staged changes could not be checked: {error}"
            self.notes.append(f"{note}; look at them before you commit")

    def take_out_steps(self, repository: Repository, known: Container[Finding]) -> list[str]:
        """Remove steps of a rebase or a merge that would write files that control programs.

        Args:
            repository: The repository.
            known: The files with steps that existed before.

        Returns:
            Sentences about the changes.
        """
        new = [finding for finding in pending(repository.common) if finding not in known]
        if not new:
            return []
        if not os.path.isdir(repository.worktree):  # noqa: PTH112 — text in
            # The work tree was removed. Any existing folder is good enough for reading.
            worktree = os.path.dirname(repository.common)  # noqa: PTH120
            repository = attrs.evolve(repository, worktree=worktree)
        try:
            with self._call(repository) as call:
                return call.take_out_steps(new)
        except (OSError, Refused) as error:
            reason = f"the files that it would write are unknown: {error}"
            return take_out([attrs.evolve(finding, reason=reason) for finding in new])

    @contextlib.contextmanager
    def _call(self, repository: Repository) -> Iterator[GitCall]:
        """Make a call for our own use, after the calls of the command."""
        parsed = ParsedCall(
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
            request = Request(parsed, {}, {}, (null.fileno(), null.fileno(), null.fileno()), ())
            yield GitCall(self._context, repository, request, scratch, self.notes.append)


def _is_in_work_tree(path: str, repository: Repository) -> bool:
    around = find_repository(os.path.dirname(path))  # noqa: PTH120 — text in, text out
    return around is not None and around.worktree == repository.worktree


def _index_times(repository: Repository) -> tuple[int, int] | None:
    """Return the inode and the time of the index. They change when git writes the index."""
    try:
        info = os.lstat(f"{repository.folder}/index")
    except OSError:
        return None
    return info.st_ino, info.st_ctime_ns


def _plain_arguments(parsed: ParsedCall) -> list[str]:
    """Return the arguments of a call whose alias was expanded."""
    folders = ["-C", parsed.directory]
    folders += [] if parsed.git_dir is None else [f"--git-dir={parsed.git_dir}"]
    folders += [] if parsed.work_tree is None else [f"--work-tree={parsed.work_tree}"]
    return [*folders, *parsed.command()]


def _copy(descriptor: int, target: str) -> None:
    # Reading from anything other than a regular file could block this thread.
    left = _MAX_FILE if stat.S_ISREG(os.fstat(descriptor).st_mode) else 0
    with Path(target).open("wb") as file:
        while left and (data := os.read(descriptor, min(1 << 16, left))):
            file.write(data)
            left -= len(data)
