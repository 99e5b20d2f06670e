"""Runs the git calls of a sandboxed command that write to a repository it can't change itself.

A ``git`` of ours is first in the search path of the command. It hands each call that may write over a socket: arguments, folder
and open streams. A thread that lives as long as the command runs it in the git profile, and looks at the repository afterwards:
what names a program and was not there before is taken out. Hooks of the repository run as commands do, with a copy of the
repository that is thrown away.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import logging
import os
import re
import select
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from amplifier._internal.programs import is_below, isolated_python

from ._git_client import MAX_FILES
from ._git_files import findings, is_harmless, path_in, pointer_target, read_text, settings, take_out
from ._git_profile import GitProfile, filters, identity_of
from ._own_files import folder_of
from ._places import Places, inside_another

logger = logging.getLogger("amplifier.modules.tools")

SHIM_FOLDER = "/run/amplifier-git"
"""Where the command finds our git."""
_CLIENT = str(Path(__file__).with_name("_git_client.py"))
_MAX_CALL = 4 << 20
_MAX_FILE = 16 << 20
_MAX_INDEX = 1 << 30
_LINGER = 2.0

# Calls of these change nothing that is protected, so the real git runs them at once.
_READING = (
    *("status", "log", "diff", "show", "rev-parse", "ls-files", "cat-file", "blame", "annotate", "grep", "describe"),
    *("rev-list", "for-each-ref", "ls-tree", "check-ignore", "check-attr", "version", "help", "var", "merge-base"),
    *("name-rev", "diff-index", "diff-tree", "diff-files", "show-ref", "shortlog", "count-objects", "fsck", "cherry"),
    *("show-branch", "whatchanged", "range-diff", "archive", "format-patch", "bundle", "ls-remote", "merge-tree"),
    *(
        "init",
        "hook",
        "lfs",
        "for-each-repo",
        "diagnose",
        "bugreport",
        "instaweb",
        "gui",
        "gitk",
        "difftool",
        "patch-id",
    ),
)
_SHIM = """#!/bin/sh
for word; do
    case $word in
    --version | --help | --exec-path | --html-path) exec {git} "$@" ;;
    -*) ;;
    {reading}) exec {git} "$@" ;;
    *) break ;;
    esac
done
exec {python} -I -S {client} {socket} {git} {folders} {roots} "$@"
"""
_WRITING = frozenset(
    (
        *("add", "am", "apply", "bisect", "branch", "checkout", "checkout-index", "cherry-pick", "clean", "clone"),
        *("commit", "commit-tree", "config", "fetch", "gc", "hash-object", "merge", "merge-file", "mktag", "mktree"),
        *("mv", "notes", "pack-refs", "prune", "pull", "push", "read-tree", "rebase", "reflog", "remote", "repack"),
        *("replace", "rerere", "reset", "restore", "revert", "rm", "sparse-checkout", "stage", "stash", "switch"),
        *("symbolic-ref", "tag", "update-index", "update-ref", "worktree", "write-tree", "update-server-info"),
        "maintenance",
    )
)
_SCRIPTS = {"submodule": "it is a shell script", "bisect": "in most versions it is a shell script"}
_SWITCHES = frozenset(
    (
        *("--no-pager", "-P", "--paginate", "-p", "--no-optional-locks", "--literal-pathspecs", "--glob-pathspecs"),
        *("--noglob-pathspecs", "--icase-pathspecs", "--no-replace-objects"),
    )
)
# Options that name a program, or a place for git's own files. Abbreviations are git's, so these are compared as prefixes.
_REFUSED: Mapping[str, tuple[str, ...]] = {
    "rebase": ("--exec", "-x"),
    "clone": ("--upload-pack", "-u", "--template", "--separate-git-dir", "--config", "-c"),
    "fetch": ("--upload-pack",),
    "pull": ("--upload-pack",),
    "push": ("--receive-pack", "--exec"),
    "apply": ("--unsafe-paths",),
    "bisect": ("run", "visualize", "view"),
    "config": ("--edit", "-e", "--global", "--system", "--file", "-f"),
    "merge": (),
}
_EDITORS_THAT_DO_NOTHING = frozenset(("", ":", "true", "/bin/true", "/usr/bin/true", "cat"))
# What each command runs before and after it. Arguments are for the hook.
_AFTER: Mapping[str, str] = {
    "commit": "post-commit",
    "merge": "post-merge",
    "pull": "post-merge",
    "checkout": "post-checkout",
    "switch": "post-checkout",
}
_ADVICE = "ask the user to run it in a terminal, or do it another way"


Bind: TypeAlias = tuple[str, tuple[int, int], str]


@attrs.frozen
class Repository:
    """A repository that a call is about.

    Attributes:
        worktree: The folder with the files.
        folder: The git folder of this work tree.
        common: The git folder of the repository.
    """

    worktree: str
    folder: str
    common: str


@attrs.frozen
class _Call:
    arguments: list[str]
    directory: str
    variables: dict[str, str]
    files: dict[str, str]
    streams: tuple[int, int, int]


class _Refused(Exception):
    pass


class GitBroker:
    """Serves the git calls of one command.

    Args:
        profile: How calls are run.
        places: What the command sees and may change.
        roots: The writable folders.
        hook: Returns the command line of a program in the ordinary sandbox, with open folders and mounts besides, and the
            descriptors that it needs.
        environment: Of the command.
        lock: Held for each call: calls of parallel commands would take each other's changes for their own.
        temporary: Folders that are empty for each command.
    """

    def __init__(
        self,
        profile: GitProfile,
        *,
        places: Places,
        roots: Sequence[str],
        hook: Callable[
            [Sequence[Bind], Sequence[str], str], contextlib.AbstractContextManager[tuple[list[str], list[int]]]
        ],
        environment: Mapping[str, str],
        lock: threading.Lock,
        temporary: Sequence[str],
    ) -> None:
        self._profile = profile
        self._places = places
        self._roots = roots
        self._hook = hook
        self._environment = environment
        self._lock = lock
        self._temporary = [*temporary]
        self.notes: list[str] = []
        self._opened: dict[str, int] = {}
        self._stop_read, self._stop_write = os.pipe()

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Serve inside the context, which gets the options and the variables that show our git to the command."""
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._stop_read)
            stack.callback(os.close, self._stop_write)
            # Cleaned up by hand, for the folder may hold a copy with odd permissions.
            self._scratch = tempfile.mkdtemp(prefix="amplifier-git-")
            stack.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            shown = f"{self._scratch}/shown"
            Path(shown).mkdir()
            self._write_shim(shown)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(f"{shown}/socket")
            listening.listen(64)
            thread = threading.Thread(target=self._serve, args=(listening,), name="tool-bash git", daemon=True)
            thread.start()
            try:
                path = f"{SHIM_FOLDER}:{self._environment['PATH']}"
                # The command's home is empty, and its commits are to be the user's all the same.
                variables = {"PATH": path, "GIT_CONFIG_SYSTEM": f"{SHIM_FOLDER}/gitconfig"}
                yield ["--ro-bind", shown, SHIM_FOLDER], variables
            finally:
                os.write(self._stop_write, b"!")
                thread.join()

    def _write_shim(self, folder: str) -> None:
        shutil.copyfile(_CLIENT, f"{folder}/client.py")
        text = self._profile.user_in_sandbox
        Path(folder, "gitconfig").write_text(text, encoding="utf-8", errors="surrogateescape")
        text = _SHIM.format(
            git=shlex.quote(self._profile.git),
            reading=" | ".join(_READING),
            python=shlex.quote(isolated_python()),
            client=f"{SHIM_FOLDER}/client.py",
            socket=f"{SHIM_FOLDER}/socket",
            folders=shlex.quote(":".join(self._temporary)),
            roots=shlex.quote(":".join(self._roots)),
        )
        Path(folder, "git").write_text(text, encoding="utf-8")
        Path(folder, "git").chmod(0o755)

    # ── serving ──

    def _serve(self, listening: socket.socket) -> None:
        while True:
            watched: list[Any] = [listening, self._stop_read]
            ready, _, _ = select.select(watched, [], [])
            if self._stop_read in ready:
                return
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                try:
                    connection.settimeout(_LINGER)
                    answer = self._answer(connection)
                except Exception:  # a thread that ends would leave every later call without an answer
                    logger.exception("tool bash: a git call failed")
                    answer = "exit 125"
                connection.sendall(answer.encode())

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
            scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True))
            call = self._read(bytes(text), descriptors, scratch)
            if call is None:
                return "exit 125"
            repository = self._repository(call)
            if repository is None:
                return "plain"
            with self._lock:
                return f"exit {self._run(call, repository, scratch, connection)}"

    def _read(self, text: bytes, descriptors: Sequence[int], scratch: str) -> _Call | None:
        try:
            arguments, directory, variables, files = json.loads(text)
        except ValueError:
            return None
        is_right = isinstance(directory, str) and isinstance(variables, dict) and isinstance(files, list)
        if not is_right or not all(isinstance(word, str) and "\0" not in word for word in [*arguments, *files]):
            return None
        copies = dict[str, str]()
        for path, descriptor in zip(files, descriptors[3:], strict=False):
            is_temporary = inside_another(path, self._temporary) and not inside_another(path, self._roots)
            if is_temporary and os.path.normpath(path) == path:
                copies[path] = f"{scratch}/file{len(copies)}"
                _copy(descriptor, copies[path])
        names = {name: str(value) for name, value in variables.items() if re.fullmatch(r"[A-Z_]+", name)}
        streams = (descriptors[0], descriptors[1], descriptors[2])
        return _Call([*arguments], directory, names, copies, streams)

    # ── which calls ──

    def _repository(self, call: _Call) -> Repository | None:
        """Return the protected repository that a call may change; None if the real git is to run it."""
        if {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"} & set(call.variables):
            return None
        directory, words = call.directory, [*call.arguments]
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option == "-C" and words:
                directory = os.path.join(directory, words.pop(0))  # noqa: PTH118 - text in, text out
            elif option == "-c" and words:
                words.pop(0)
            elif option not in _SWITCHES:
                return None
        if not words or (words[0] not in _WRITING and words[0] not in _SCRIPTS):
            return None
        if words[0] == "submodule" and words[1:2] in ([], ["status"], ["summary"]):
            return None
        directory = os.path.realpath(directory)
        if not any(is_below(directory, root) for root in self._roots):
            return None
        repository = find_repository(directory)
        covered = self._places.repositories
        if repository is None or not covered:
            return None
        is_covered = any(is_below(repository.common, path) or is_below(path, repository.common) for path in covered)
        # A push may be to another repository here.
        return repository if is_covered or words[0] == "push" else None

    def _folders(self, repository: Repository, subcommand: str) -> list[str]:
        """Return the git folders that a call may change."""
        folders = [repository.common]
        if not is_below(repository.folder, repository.common):
            folders.append(repository.folder)
        if subcommand == "push":
            folders += [path for path in self._places.repositories if Path(path).is_dir() and path not in folders]
        return folders

    def _check(self, call: _Call, repository: Repository) -> tuple[str, list[str], list[str]]:
        """Return the subcommand, its arguments, and the whole call as it is run.

        Raises:
            _Refused: It needs a program that can't run here.
        """
        words, kept = [*call.arguments], list[str]()
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option == "-c":
                key, is_given, value = words[0].partition("=")
                if not is_harmless(key, value if is_given else "true"):
                    raise _Refused(f"the setting {key} is none that is known to run no program")
            kept.append(option)
            if option in ("-C", "-c"):
                kept.append(words.pop(0))
        subcommand, *rest = words
        if subcommand in _SCRIPTS:
            raise _Refused(f"git {subcommand} needs a shell, because {_SCRIPTS[subcommand]}")
        refused = _REFUSED.get(subcommand, ())
        for word in rest:
            if word == "--":
                break
            name = word.partition("=")[0]
            is_long = name.startswith("--") and len(name) > 3
            for option in refused:
                if word == option or (is_long and option.startswith(name)) or _is_short_of(word, option):
                    raise _Refused(f"git {subcommand} {option} names a program, or a place outside of the repository")
        if subcommand in ("worktree", "clone", "mv"):
            for word in rest:
                path = os.path.realpath(os.path.join(call.directory, word.partition("=")[2] or word))  # noqa: PTH118
                if is_below(path, repository.common) or "/.git/" in f"{path}/":
                    raise _Refused(f"{word} leads into a git folder")
        if subcommand == "config":
            self._check_setting(rest)
        for name in ("GIT_SEQUENCE_EDITOR", "GIT_EDITOR"):
            if call.variables.get(name, "") not in _EDITORS_THAT_DO_NOTHING:
                raise _Refused(f"{name} names a program; write the steps with --fixup and --autosquash instead")
        return subcommand, rest, [*kept, subcommand, *rest]

    def _check_setting(self, words: list[str]) -> None:
        plain = [word for word in words if not word.startswith("-")]
        if len(plain) > 1 and "." in plain[0] and not is_harmless(plain[0], plain[1]):
            raise _Refused(f"the setting {plain[0]} can name a program for the user's git")

    # ── one call ──

    def _run(self, call: _Call, repository: Repository, scratch: str, connection: socket.socket) -> int:
        output = _Errors(call.streams[2])
        try:
            subcommand, rest, arguments = self._check(call, repository)
        except _Refused as error:
            output.say(f"{error}. The sandbox runs git without other programs; {_ADVICE}.")
            return 126
        with contextlib.ExitStack() as stack:
            self._opened = {
                folder: stack.enter_context(folder_of(f"{folder}/HEAD"))
                for folder in self._folders(repository, subcommand)
            }
            folders = {f"/proc/self/fd/{descriptor}": folder for folder, descriptor in self._opened.items()}
            before = {finding for folder in folders for finding in findings(folder)}
            texts = {
                path: text
                for name in ("config", "config.worktree")
                for folder in folders
                if (text := read_text(path := f"{folder}/{name}")) is not None
            }
            try:
                return self._steps(call, repository, scratch, connection, (subcommand, rest, arguments), output)
            finally:
                new = [finding for folder in folders for finding in findings(folder) if finding not in before]
                for note in take_out(new, texts):
                    number, _, rest_of_note = note.removeprefix("/proc/self/fd/").partition("/")
                    self.notes.append(f"{folders[f'/proc/self/fd/{number}']}/{rest_of_note}")
                    output.say(self.notes[-1])

    def _steps(
        self,
        call: _Call,
        repository: Repository,
        scratch: str,
        connection: socket.socket,
        words: tuple[str, list[str], list[str]],
        output: _Errors,
    ) -> int:
        subcommand, rest, arguments = words
        run_hooks = not (
            {"--no-verify"} & set(rest) or (subcommand == "commit" and any(_is_short_of(w, "-n") for w in rest))
        )
        hooks = _Hooks(repository, self, call, scratch, connection, output)
        if run_hooks and subcommand == "commit":
            is_all = any(word == "--all" or _is_short_of(word, "-a") for word in rest)
            if (code := hooks.run("pre-commit", stage=is_all, take_back=True)) != 0:
                return code
        if run_hooks and subcommand == "rebase" and (code := hooks.run("pre-rebase")) != 0:
            return code
        if run_hooks and subcommand == "push":
            plain = [word for word in rest if not word.startswith("-")] or ["origin"]
            if (code := hooks.run("pre-push", plain[0], plain[0])) != 0:
                return code
        has_message_hook = run_hooks and subcommand == "commit" and hooks.exists("commit-msg")
        head = hooks.output_of("rev-parse", "--verify", "-q", "HEAD") if has_message_hook else ""
        code = self.git(arguments, call, repository, scratch, connection)
        if code == 0 and has_message_hook:
            code = hooks.check_message(head)
        if code == 0 and (hook := _AFTER.get(subcommand)) is not None:
            hooks.run(hook, *(("0",) if hook == "post-merge" else ()))
        if code != 0 and (names := filters(f"/proc/self/fd/{each}" for each in self._opened.values())):
            output.say(
                f"the filters {', '.join(names)} of this repository are programs, and none runs here; {_ADVICE}."
            )
        elif code != 0 and subcommand in ("merge", "pull") and len(rest) > 1:
            output.say(f"a merge of more than two branches or with another strategy needs a shell; {_ADVICE}.")
        return code

    def git(
        self,
        arguments: Sequence[str],
        call: _Call,
        repository: Repository,
        scratch: str,
        connection: socket.socket | None,
        *,
        streams: tuple[int, int, int] | None = None,
        directory: str | None = None,
        files: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> int:
        """Run git in its profile; returns its exit code."""
        allowed = {
            name: value
            for name, value in call.variables.items()
            if name.startswith(("GIT_AUTHOR_", "GIT_COMMITTER_", "TZ"))
        }
        process = self._profile.start(
            arguments,
            places=self._places,
            roots=self._roots,
            writable=self._opened,
            directory=directory or call.directory,
            environment={**allowed, **(variables or {})},
            files={**call.files, **(files or {})},
            streams=streams or call.streams,
            scratch=scratch,
        )
        return self._wait(process, connection)

    def _wait(self, process: subprocess.Popen[bytes], connection: socket.socket | None) -> int:
        """Wait for the end of a call, of its caller, or of the command."""
        ended = os.pidfd_open(process.pid)
        try:
            watched: list[Any] = [ended, self._stop_read, *([] if connection is None else [connection])]
            ready, _, _ = select.select(watched, [], [])
            if ended not in ready:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
        finally:
            os.close(ended)
        code = process.wait()
        return code if code >= 0 else 128 - code

    def in_sandbox(
        self, binds: Sequence[Bind], mounts: Sequence[str], directory: str, arguments: Sequence[str], call: _Call
    ) -> int:
        """Run a program as a command of the agent.

        Args:
            binds: Folders, what has to lie there, and where they are mounted outside of the sandbox.
            mounts: Options for further mounts.
            directory: Where it runs.
            arguments: The program and its arguments.
            call: The call of git that it belongs to.
        """
        with self._hook(binds, mounts, directory) as (command, descriptors):
            with Path(os.devnull).open("rb") as null:
                process = subprocess.Popen(
                    [*command, "--", *arguments],
                    env={**self._environment, "GIT_EDITOR": ":"},
                    cwd="/",
                    stdin=null,
                    stdout=call.streams[2],
                    stderr=call.streams[2],
                    pass_fds=descriptors,
                    start_new_session=True,
                )
            return self._wait(process, None)


def _copy(descriptor: int, target: str) -> None:
    # Anything else than a file could keep this thread waiting.
    left = _MAX_FILE if stat.S_ISREG(os.fstat(descriptor).st_mode) else 0
    with Path(target).open("wb") as file:
        while left and (data := os.read(descriptor, min(1 << 16, left))):
            file.write(data)
            left -= len(data)


def _is_short_of(word: str, option: str) -> bool:
    """Check whether a word such as ``-am`` has a short option in it; those with a value end such a word."""
    if len(option) != 2 or word.startswith("--") or not word.startswith("-"):
        return False
    letters = re.split(r"[mFCcSut]", word[1:], maxsplit=1)[0] if option[1] not in "cuS" else word[1:]
    return option[1] in letters


@attrs.frozen
class _Errors:
    """Where the caller of git reads what went wrong."""

    _descriptor: int

    def say(self, text: str) -> None:
        # A pipe that no one reads must not keep this thread waiting: what is writable takes so much at once.
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        with contextlib.suppress(OSError):
            if poll.poll(0):
                os.write(self._descriptor, f"amplifier: {text}\n".encode(errors="replace")[: select.PIPE_BUF])


def find_repository(directory: str) -> Repository | None:
    """Return the repository around a folder; None if there is none, or if a link is on the way.

    Args:
        directory: A real path.
    """
    worktree = directory
    while not os.path.lexists(f"{worktree}/.git"):
        if worktree == "/":
            return None
        worktree = os.path.dirname(worktree)  # noqa: PTH120 - text in, text out
    folder = f"{worktree}/.git"
    if (text := read_text(folder)) is not None:
        target = pointer_target(text)
        folder = os.path.realpath(os.path.join(worktree, target)) if target else folder  # noqa: PTH118
    if os.path.realpath(folder) != folder or not os.path.isdir(folder):  # noqa: PTH112
        return None
    common = path_in(read_text(f"{folder}/commondir") or "")
    return Repository(worktree, folder, os.path.realpath(os.path.join(folder, common)))  # noqa: PTH118


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────

_NOT_COPIED = frozenset(("objects", "hooks", "config", "config.worktree", "modules", "lfs"))


@attrs.frozen
class _Hooks:
    """The hooks of a repository around one call."""

    _repository: Repository
    _broker: GitBroker
    _call: _Call
    _scratch: str
    _connection: socket.socket
    _output: _Errors

    def path(self, name: str) -> str:
        """Return where git looks for a hook."""
        repository = self._repository
        text = read_text(f"{self._opened()}/config") or ""
        named = dict(settings(text) or ()).get("core.hookspath") if "hookspath" in text.lower() else None
        folder = f"{repository.common}/hooks" if not named else os.path.join(repository.worktree, named)  # noqa: PTH118
        return os.path.normpath(f"{folder}/{name}")

    def exists(self, name: str) -> bool:
        """Check whether git would run a hook."""
        return os.access(self.path(name), os.X_OK)

    def run(self, name: str, *arguments: str, stage: bool = False, take_back: bool = False) -> int:
        """Run a hook with a copy of the repository; returns its exit code, 0 if there is no such hook."""
        if not self.exists(name):
            return 0
        with self._copied() as (copy, binds, mounts):
            before = _digest(copy, self._index())
            words = [self.path(name), *arguments]
            if stage:
                words = ["/bin/sh", "-c", f'{shlex.quote(self._broker._profile.git)} add -u && exec "$@"', "sh", *words]
            code = self._broker.in_sandbox(binds, mounts, self._repository.worktree, words, self._call)
            if code == 0 and take_back and (after := _digest(copy, self._index())) != before:
                if after is None:
                    self._output.say(f"the hook {name} of the repository left no index that can be read")
                    return 125
                code = self._take_back(copy)
        if code != 0 and name.startswith("pre-"):
            self._output.say(f"the hook {name} of the repository ended with exit code {code}")
        return code

    def check_message(self, head: str) -> int:
        """Run commit-msg for the commit that was just made, which is undone if the hook refuses it."""
        message = self.output_of("log", "-1", "--format=%B")
        with self._copied() as (copy, binds, mounts):
            file = Path(copy, "COMMIT_EDITMSG")
            file.write_text(message, encoding="utf-8", errors="surrogateescape")
            words = [self.path("commit-msg"), f"{self._repository.common}/COMMIT_EDITMSG"]
            code = self._broker.in_sandbox(binds, mounts, self._repository.worktree, words, self._call)
            changed = _content(copy, "COMMIT_EDITMSG")
        if code == 0 and changed is None:
            self._output.say("the hook commit-msg of the repository left no message that can be read")
            code = 125
        if code != 0 or changed is None:
            undo = ["reset", "-q", "--soft", head.strip()] if head.strip() else ["update-ref", "-d", "HEAD"]
            self._git(*undo)
            self._output.say(f"the hook commit-msg of the repository refused the message, exit code {code}")
            return code
        if changed.decode("utf-8", "surrogateescape") != message:
            new = f"{self._scratch}/message"
            Path(new).write_bytes(changed)
            amend = ["commit", "--amend", "--allow-empty", "--no-verify", "-q", "-F", "/h/message"]
            return self._git(*amend, files={"/h/message": new})
        return 0

    def _git(self, *arguments: str, **options: Any) -> int:
        return self._broker.git(
            arguments,
            self._call,
            self._repository,
            self._scratch,
            self._connection,
            directory=self._repository.worktree,
            **options,
        )

    def output_of(self, *arguments: str, **options: Any) -> str:
        """Run git in its profile and return what it printed."""
        with tempfile.TemporaryFile() as file, Path(os.devnull).open("rb") as null:
            self._git(*arguments, streams=(null.fileno(), file.fileno(), self._call.streams[2]), **options)
            file.seek(0)
            return file.read().decode("utf-8", "surrogateescape")

    def _opened(self) -> str:
        return f"/proc/self/fd/{self._broker._opened[self._repository.common]}"

    def _index(self) -> str:
        relative = os.path.relpath(self._repository.folder, self._repository.common)
        return os.path.normpath(f"{relative}/index")

    @contextlib.contextmanager
    def _copied(self) -> Iterator[tuple[str, list[Bind], list[str]]]:
        """Copy the repository but for its objects, which the copy borrows."""
        common, opened = self._repository.common, self._opened()
        copy, mounted = tempfile.mkdtemp(dir=self._scratch), tempfile.mkdtemp(dir=self._scratch)
        for entry in os.scandir(opened):
            if entry.name in _NOT_COPIED or entry.name.endswith(".lock") or entry.is_symlink():
                continue
            if entry.is_dir():
                shutil.copytree(entry.path, f"{copy}/{entry.name}", symlinks=True)
            elif entry.is_file():
                shutil.copy2(entry.path, f"{copy}/{entry.name}")
        Path(copy, "objects", "info").mkdir(parents=True)
        borrowed = f"{SHIM_FOLDER}-objects"
        Path(copy, "objects", "info", "alternates").write_text(f"{borrowed}\n", encoding="utf-8")
        mounts = ["--ro-bind", f"{mounted}/objects", borrowed, "--bind", copy, common]
        for name in ("config", "config.worktree", "hooks"):
            if os.path.lexists(f"{opened}/{name}"):
                target = Path(copy, name)
                target.mkdir() if Path(opened, name).is_dir() else target.touch()
                mounts += ["--ro-bind", f"{mounted}/{name}", f"{common}/{name}"]
        try:
            yield copy, [(common, identity_of(self._broker._opened[common]), mounted)], mounts
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _take_back(self, copy: str) -> int:
        """Take the index of the copy and its new objects into the repository."""
        common = self._repository.common
        # In the profile: git reads what a hook has written. The copy is bound where the call can see it.
        files = {"/h/copy": copy}
        index = {"GIT_DIR": common, "GIT_INDEX_FILE": f"/h/copy/{self._index()}"}
        alternates = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": "/h/copy/objects"}
        rows = self.output_of("ls-files", "-s", "-z", files=files, variables=index | alternates)
        old = set(self.output_of("ls-files", "-s", "-z").split("\0"))
        kept = [row for row in rows.split("\0") if row and (not row.startswith("160000 ") or row in old)]
        new = dict.fromkeys(row.split(" ", 2)[1] for row in kept if row not in old)
        with tempfile.TemporaryFile() as pack:
            options: dict[str, Any] = {"files": files, "variables": alternates, "output": pack.fileno()}
            if new and self._with_input("\n".join(new), "pack-objects", "-q", "--stdout", **options) != 0:
                return 125
            pack.seek(0)
            if new and self._with_input(pack.read(), "unpack-objects", "-q") != 0:
                return 125
        self._git("read-tree", "--empty")
        return self._with_input("".join(f"{row}\0" for row in kept), "update-index", "-z", "--index-info")

    def _with_input(self, text: str | bytes, *arguments: str, output: int | None = None, **options: Any) -> int:
        with tempfile.TemporaryFile() as file, Path(os.devnull).open("wb") as null:
            file.write(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
            file.seek(0)
            streams = (file.fileno(), null.fileno() if output is None else output, self._call.streams[2])
            return self._git(*arguments, streams=streams, **options)


# A hook may have put a link, a pipe or a huge file in the place of what it was given.


@contextlib.contextmanager
def _file_in(copy: str, name: str, most: int) -> Iterator[BufferedReader | None]:
    """Open a regular file in a copy, reached without links; None if there is none of at most this size."""
    with contextlib.ExitStack() as stack:
        file = None
        with contextlib.suppress(OSError):
            top = os.open(copy, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, top)
            folder = stack.enter_context(folder_of(f"/proc/self/fd/{top}/{name}"))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            descriptor = os.open(Path(name).name, flags, dir_fd=folder)
            # It closes the descriptor.
            opened = stack.enter_context(os.fdopen(descriptor, "rb"))
            found = os.fstat(descriptor)
            file = opened if stat.S_ISREG(found.st_mode) and found.st_size <= most else None
        yield file


def _content(copy: str, name: str) -> bytes | None:
    with _file_in(copy, name, _MAX_FILE) as file:
        return None if file is None else file.read(_MAX_FILE)


def _digest(copy: str, name: str) -> bytes | None:
    with _file_in(copy, name, _MAX_INDEX) as file:
        return None if file is None else hashlib.file_digest(file, "sha256").digest()
