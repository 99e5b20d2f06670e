"""Run one git call of a command for the broker, and check the repository afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import attrs

from amplifier._internal.programs import is_below

from ..._shared.git_configuration import named_by_configuration, real_path
from ._git_arguments import ParsedCall, Refused, check_call
from ._git_files import Finding, findings, path_in, pointer_target, read_text, settings, take_out
from ._git_history import MISSING, State, TrackedFiles, UsersHistory, files_at
from ._git_profile import GitProfile, start_in_bubblewrap
from ._git_steps import Steps, read_steps
from ._protected_paths import folder_of
from ._sandbox_paths import SandboxView, inside_another

ADVICE = "ask the user to run it in a terminal, or do it another way"
Bind: TypeAlias = tuple[str, tuple[int, int], str]
"""A folder, its expected device and inode, and its mount point outside of the sandbox."""
_FETCHING = frozenset(("fetch", "pull", "fetch-pack", "remote", "send-pack", "push"))
_CONFIGURATIONS = ("config", "config.worktree")
# The profile keeps its own files there.
_OF_THE_SYSTEM = (
    "/bin",
    "/dev",
    "/etc",
    "/h",
    "/lib",
    "/lib64",
    "/proc",
    "/sbin",
    "/sys",
    "/tmp",
    "/usr",
)
_LOG_SECONDS = 20.0
_LOG = (
    *("--no-replace-objects", "--literal-pathspecs", "log", "--no-ext-diff", "--no-textconv"),
    *("--raw", "--no-abbrev", "--no-renames", "--root", "-m", "--full-history", "--format="),
    "--no-color",
)


_STAGED = ("diff-index", "--cached", "--raw", "--no-renames", "--no-abbrev", "-z")
_EMPTY_TREE = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}


@attrs.frozen
class Repository:
    """The repository of a call.

    Attributes:
        worktree: The work tree.
        folder: The git folder of this work tree.
        common: The git folder of the repository.
    """

    worktree: str
    folder: str
    common: str


@attrs.frozen
class Request:
    """A call that a command sent to the broker.

    Attributes:
        parsed: Its arguments.
        variables: Its environment variables.
        files: Copies of files that exist only in the sandbox, by path.
        streams: The descriptors of its standard input, output and error.
        stopping: Descriptors that end the call when they become readable.
    """

    parsed: ParsedCall
    variables: Mapping[str, str]
    files: Mapping[str, str]
    streams: tuple[int, int, int]
    stopping: tuple[int, ...]


@attrs.frozen(kw_only=True)
class CallContext:
    """The data that all calls of one command share.

    Attributes:
        profile: Runs git.
        view: The file system of the command.
        roots: The writable folders.
        temporary: Folders that are empty for each command.
        wrapper: Returns the command line of bubblewrap for a hook, with further mounts and a
            folder.
        limits: Resource limits for hooks.
        environment: The environment variables of the command.
        baselines: The states of repositories, shared by all commands of the session.
        is_obeyed: Returns whether a file controls programs. git may write such a file only with
            content of the user.
    """

    profile: GitProfile
    view: SandboxView
    roots: Sequence[str]
    temporary: Sequence[str]
    wrapper: Callable[[Sequence[str], str], list[str]]
    limits: Mapping[str, int]
    environment: Mapping[str, str]
    baselines: Baselines
    is_obeyed: Callable[[str], bool]


# ── calls at the same time ────────────────────────────────────────────────────────────────────────


@attrs.define
class _Baseline:
    findings: set[Finding]
    texts: dict[str, str]
    calls: int = 0


# The two calls of a pipe run at the same time. They share the state before the first one, so that
# the changes of one don't count as the user's in the other. The calls of all sessions of this
# process share it in the same way.


class Baselines:
    """The states of repositories before the calls that are running.

    Attributes:
        contents: Files with content that was there when commands could not change it.
    """

    _lock: ClassVar = threading.Lock()
    _known: ClassVar[dict[str, _Baseline]] = {}

    def __init__(self) -> None:
        self.contents: set[Any] = set()

    @contextlib.contextmanager
    def kept(self, folder: str, opened: str, say: Callable[[str], None]) -> Iterator[None]:
        """Remove from a git folder the findings that the calls inside the context have added.

        Args:
            folder: Its path.
            opened: The same folder by its descriptor, a path in ``/proc/self/fd``.
            say: Receives a sentence about each file.
        """
        with self._lock:
            baseline = self._known.get(folder)
            if baseline is None:
                texts = {name: read_text(f"{opened}/{name}") for name in _CONFIGURATIONS}
                known = {name: text for name, text in texts.items() if text is not None}
                baseline = self._known[folder] = _Baseline({*_findings(opened)}, known)
            baseline.calls += 1
        try:
            yield
        finally:
            with self._lock:
                baseline.calls -= 1
                if baseline.calls == 0:
                    del self._known[folder]
                new = [finding for finding in _findings(opened) if finding not in baseline.findings]
                new = [attrs.evolve(finding, path=f"{opened}/{finding.path}") for finding in new]
                texts_now = {f"{opened}/{name}": text for name, text in baseline.texts.items()}
                for note in take_out(new, texts_now):
                    say(f"{folder}{note.removeprefix(opened)}")


def _findings(opened: str) -> Iterator[Finding]:
    """Yield the findings with paths relative to the folder."""
    for finding in findings(opened):
        yield attrs.evolve(finding, path=finding.path.removeprefix(f"{opened}/"))


# ── one call ──────────────────────────────────────────────────────────────────────────────────────


class GitCall:
    """One call.

    Args:
        context: The data that it shares with other calls.
        repository: The protected repository that it may change.
        request: The call.
        scratch: A folder for temporary files.
        note: Receives a sentence about every change of the repository that was undone.

    Attributes:
        opened: The descriptors of the git folders that it may change, by path.
    """

    def __init__(
        self,
        context: CallContext,
        repository: Repository,
        request: Request,
        scratch: str,
        note: Callable[[str], None],
    ) -> None:
        self.context = context
        self.repository = repository
        self.request = request
        self.scratch = scratch
        self._note = note
        self._errors = request.streams[2]
        self.opened: dict[str, int] = {}
        self._tracked: TrackedFiles | None = None
        self._shown: list[str] = []

    def say(self, text: str) -> None:
        """Write a message to the standard error of the call."""
        # A pipe without a reader must not block this thread. A writable pipe has room for PIPE_BUF.
        poll = select.poll()
        poll.register(self._errors, select.POLLOUT)
        with contextlib.suppress(OSError):
            if poll.poll(0):
                os.write(
                    self._errors, f"amplifier: {text}\n".encode(errors="replace")[: select.PIPE_BUF]
                )

    def run(
        self, tracked: Callable[[Repository], TrackedFiles], run_git: Callable[[GitCall], int]
    ) -> int:
        """Run the call and return its exit code.

        Args:
            tracked: Returns the protected files of the work tree that git may write.
            run_git: Runs git and the hooks, and returns the exit code.
        """
        parsed = self.request.parsed
        try:
            check_call(parsed, self.request.variables, self.repository.common)
            self._check_targets()
            with self._open_folders():
                self._shown = [*self._folders_to_read()]
                self._tracked = tracked(self.repository)
                code = run_git(self)
                return 1 if self.settle(self._tracked) and code == 0 else code
        except Refused as error:
            self.say(f"{error}. The sandbox runs git without other programs; {ADVICE}.")
            return 126

    @contextlib.contextmanager
    def _open_folders(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for folder in self._git_folders():
                self.opened[folder] = stack.enter_context(folder_of(f"{folder}/HEAD"))
            self._history = UsersHistory(os.fstat(self.opened[self.repository.common]).st_ino)
            stack.enter_context(self._history.during_call(self.path_of(self.repository.common)))
            for folder in self.opened:
                stack.enter_context(
                    self.context.baselines.kept(folder, self.path_of(folder), self._note_and_say)
                )
            yield

    def path_of(self, folder: str) -> str:
        """Return a path through the descriptor of a git folder, which can't be exchanged."""
        return f"/proc/self/fd/{self.opened[folder]}"

    def _note_and_say(self, text: str) -> None:
        self._note(text)
        self.say(text)

    def _git_folders(self) -> list[str]:
        """Return the git folders that the call may change."""
        repository = self.repository
        folders = [repository.common]
        if not is_below(repository.folder, repository.common):
            folders.append(repository.folder)
        if self.request.parsed.subcommand == "push":
            others = self.context.view.repositories
            folders += [path for path in others if Path(path).is_dir() and path not in folders]
        return folders

    # ── folders besides the work tree ──

    def _check_targets(self) -> None:
        parsed, roots = self.request.parsed, self.context.roots
        if parsed.subcommand == "worktree" and parsed.positional[:1] in (("add",), ("move",)):
            for word in parsed.positional[1:]:
                path = os.path.normpath(os.path.join(parsed.directory, word))  # noqa: PTH118
                is_inside = any(is_below(path, root) for root in roots)
                if inside_another(path, self.context.temporary) and not is_inside:
                    raise Refused(f"{path} is empty for each command, so a work tree there is lost")
                if not is_inside and word.startswith(("/", "..")):
                    raise Refused(f"{path} is outside of the folders that commands may change")

    def _folders_to_read(self) -> Iterator[str]:
        """Yield folders outside of the work tree that git has to read.

        These are the folders of other repositories and of shared objects.
        """
        repository, roots = self.repository, self.context.roots
        if not any(is_below(repository.worktree, root) for root in roots):
            yield repository.worktree
        pending = [f"{self.path_of(repository.common)}/objects"]
        for objects in pending[:10]:
            for line in (read_text(f"{objects}/info/alternates") or "").splitlines():
                real = f"{repository.common}/objects" if objects == pending[0] else objects
                path = real_path(os.path.join(real, line))  # noqa: PTH118
                if (
                    line
                    and not line.startswith("#")
                    and not any(is_below(path, root) for root in roots)
                ):
                    if not self.sees(path):
                        raise Refused(
                            f"objects of this repository are in {path}, which commands can't see; "
                            "name the folder as readable in the plan, or run git repack -a -d and "
                            "remove .git/objects/info/alternates"
                        )
                    yield path
                    pending.append(path)
        if self.request.parsed.subcommand not in _FETCHING:
            return
        for path in self._remotes():
            if any(is_below(path, root) for root in roots):
                continue
            if self.request.parsed.subcommand == "push":
                raise Refused(f"{path} is outside of the folders that commands may change")
            if not self.sees(path):
                raise Refused(f"commands can't see {path}; name the folder as readable in the plan")
            yield path

    def _remotes(self) -> Iterator[str]:
        """Yield the repositories on this machine that the call reads or writes."""
        parsed = self.request.parsed
        pairs = settings(read_text(f"{self.path_of(self.repository.common)}/config") or "") or []
        urls = {key: value for key, value in pairs if re.fullmatch(r"remote\..*\.(push)?url", key)}
        named = [word for word in parsed.positional if f"remote.{word}.url" in urls]
        if parsed.subcommand == "push":
            chosen = [
                urls.get(f"remote.{name}.pushurl", urls[f"remote.{name}.url"]) for name in named[:1]
            ]
            chosen = chosen or ([*parsed.positional[:1]] or list(urls.values()))
        else:
            chosen = [*urls.values(), *parsed.positional]
        for url in chosen:
            text = url.removeprefix("file://")
            base = self.repository.worktree if url in urls.values() else parsed.directory
            path = os.path.normpath(os.path.join(base, text))  # noqa: PTH118
            for folder in (path, f"{path}.git"):
                has_objects = os.path.isdir(f"{folder}/objects")  # noqa: PTH112
                has_git = has_objects or os.path.lexists(f"{folder}/.git")
                if has_git and os.path.isdir(folder):  # noqa: PTH112
                    yield real_path(folder)

    def sees(self, path: str) -> bool:
        """Return whether a folder is visible to the command, so that git may read it, too."""
        return is_visible(self.context.view, path)

    def git(
        self,
        arguments: Sequence[str],
        *,
        streams: tuple[int, int, int] | None = None,
        directory: str | None = None,
        files: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> int:
        """Run git in its profile and return its exit code."""
        request = self.request
        kept = ("GIT_AUTHOR_", "GIT_COMMITTER_", "TZ")
        environment = {
            name: value for name, value in request.variables.items() if name.startswith(kept)
        }
        if request.parsed.git_dir is not None:
            environment |= {
                "GIT_DIR": self.repository.folder,
                "GIT_WORK_TREE": self.repository.worktree,
            }
        elif request.parsed.work_tree is not None:
            environment |= {"GIT_WORK_TREE": self.repository.worktree}
        started = self.context.profile.start(
            arguments,
            view=self.context.view,
            roots=self.context.roots,
            writable=self.opened,
            directory=directory or request.parsed.directory,
            environment={**environment, **(variables or {})},
            files={**request.files, **(files or {})},
            streams=streams or request.streams,
            scratch=tempfile.mkdtemp(dir=self.scratch),
            shown=self._shown,
            opened=self._tracked.paths if self._tracked else (),
        )
        return started.wait(request.stopping, seconds)

    def output_of(self, *arguments: str, **options: Any) -> str:
        """Run git in its profile, at the top of the work tree, and return its output."""
        with tempfile.TemporaryFile() as file, Path(os.devnull).open("rb+") as null:
            streams = (options.pop("stdin", null.fileno()), file.fileno(), null.fileno())
            self.git(arguments, streams=streams, directory=self.repository.worktree, **options)
            file.seek(0)
            return file.read().decode("utf-8", "surrogateescape")

    def in_sandbox(
        self,
        binds: Sequence[Bind],
        mounts: Sequence[str],
        arguments: Sequence[str],
        stdin: int | None = None,
    ) -> int:
        """Run a program as a command of the agent, at the top of the work tree.

        Args:
            binds: Folders to mount for it.
            mounts: Options for further mounts.
            arguments: The program and its arguments.
            stdin: The descriptor of its standard input. None for an empty one.
        """
        profile, errors = self.context.profile, self.request.streams[2]
        job = json.dumps({"noexec": [], "binds": [*binds], "limits": dict(self.context.limits)})
        wrapper = self.context.wrapper(mounts, self.repository.worktree)
        environment = {**self.context.environment, "GIT_EDITOR": ":"}
        with Path(os.devnull).open("rb") as null:
            streams = (null.fileno() if stdin is None else stdin, errors, errors)
            started = start_in_bubblewrap(
                job, wrapper, arguments, profile.filter, environment, streams
            )
            return started.wait(self.request.stopping)

    # ── protected files of the work tree ──

    def settle_alone(self, tracked: TrackedFiles) -> None:
        """Do the same as `settle` when there is no call from the command."""
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            self.settle(tracked)

    def settle(self, tracked: TrackedFiles) -> bool:
        """Restore protected files whose new content is in no commit of the user.

        Returns:
            Whether a file was restored.
        """
        notes, is_restored = tracked.settle(self._is_users, self._algorithm())
        for note in notes:
            self._note_and_say(note)
        return is_restored

    def of_the_user(self, paths: Iterable[str]) -> list[str]:
        """Return the new paths in which every file has content of the user."""
        known = self.context.baselines.contents
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            algorithm = self._algorithm()
            return [
                path
                for path in paths
                if (files := files_at(path))
                and all(
                    item in known or self._is_users(item[0], item[1].state(algorithm))
                    for item in files.items()
                )
            ]

    def unstage(self) -> list[str]:
        """Unstage protected files with content of the agent.

        The user's next commit would have this content, and it would count as the user's.

        Returns:
            Sentences about the changes.
        """
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            led, algorithm = {*named_by_configuration(self.repository.worktree)}, self._algorithm()
            has_head = self._has_head()
            # Without a commit, the staged changes are compared with an empty tree.
            rows = self.output_of(*_STAGED, "HEAD" if has_head else _EMPTY_TREE[algorithm])
            known = self.context.baselines.contents
            names = list[str]()
            for mode, digest, name in re.findall(r":\d+ (\d+) \w+ (\w+) \w\0([^\0]+)\0", rows):
                path, state = f"{self.repository.worktree}/{name}", (mode, digest)
                if mode == MISSING or not self._is_obeyed(path, led):
                    continue
                if not self._is_users(path, state) and not any(
                    at == path and file.state(algorithm) == state for at, file in known
                ):
                    names.append(name)
            if not names:
                return []
            undo = ("reset", "-q", "HEAD") if has_head else ("rm", "-q", "-r", "-f", "--cached")
            self.output_of("--literal-pathspecs", *undo, "--", *names)
        reason = "programs obey it, and no commit of the user's has this content"
        return [f"{self.repository.worktree}/{name}: was unstaged ({reason})" for name in names]

    def _has_head(self) -> bool:
        text = read_text(f"{self.repository.folder}/HEAD") or ""
        ref = f"{self.repository.common}/{text.removeprefix('ref: ').strip()}"
        # Starting git for this would take longer.
        if not text.startswith("ref: ") or os.path.isfile(ref):  # noqa: PTH113 — text in
            return True
        return bool(self.output_of("rev-parse", "-q", "--verify", "HEAD"))

    # ── remaining steps ──

    def take_out_steps(self, files: Iterable[Finding]) -> list[str]:
        """Remove files with steps that would write protected files with content of the agent.

        Args:
            files: The files, from `pending`.

        Returns:
            Sentences about the changes.
        """
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            led = {*named_by_configuration(self.repository.worktree)}
            problems = [
                attrs.evolve(file, reason=reason)
                for file in files
                if (reason := self._problem_of(read_steps(file.path), led)) is not None
            ]
            return take_out(problems)

    def _problem_of(self, steps: Steps, led: set[str]) -> str | None:
        if not steps.is_clear:
            return "it has a step with an unknown commit"
        algorithm = self._algorithm()
        users = [f"^{commit}" for commit in self._history.tips()]
        for options, commits in ((["--no-walk"], steps.commits), ([], [*steps.trees, *users])):
            if not commits or commits == users:
                continue
            rows = self._changes(options, commits)
            if rows is None:
                return "git can't read the changes of its steps"
            for states, name in rows:
                path = f"{self.repository.worktree}/{name}"
                if self._is_obeyed(path, led) and not all(
                    self._is_known(path, state, algorithm) for state in states
                ):
                    return (
                        f"its steps write {path}, which programs obey, and no commit of the user's "
                        "has this content"
                    )
        return None

    def _changes(
        self, options: Sequence[str], commits: Sequence[str]
    ) -> list[tuple[tuple[State, State], str]] | None:
        """Return the states of each file before and after some commits. None if git fails."""
        with (
            tempfile.TemporaryFile() as names,
            tempfile.TemporaryFile() as output,
            Path(os.devnull).open("rb+") as null,
        ):
            names.write("".join(f"{commit}\n" for commit in commits).encode())
            names.seek(0)
            code = self.git(
                [*_LOG, *options, "-z", "--ignore-missing", "--stdin"],
                streams=(names.fileno(), output.fileno(), null.fileno()),
                directory=self.repository.worktree,
                seconds=_LOG_SECONDS,
            )
            output.seek(0)
            text = output.read().decode("utf-8", "surrogateescape")
        if code != 0:
            return None
        rows = re.findall(r":(\d+) (\d+) (\w+) (\w+) \w\0([^\0]+)\0", text)
        return [(((old_mode, old), (mode, new)), name) for old_mode, mode, old, new, name in rows]

    def _is_obeyed(self, path: str, led: set[str]) -> bool:
        while is_below(path, self.repository.worktree) and path != self.repository.worktree:
            if path in led or self.context.is_obeyed(path):
                return True
            path = path.rpartition("/")[0]
        return False

    def _is_known(self, path: str, state: State, algorithm: str) -> bool:
        """Return whether a file may get a certain state.

        The file may if it has that state now, had it when commands could not change it, or had it
        in a commit of the user.
        """
        if state[0] == MISSING:
            return True
        files = {file for at, file in self.context.baselines.contents if at == path}
        files |= {*(files_at(path) or {}).values()}
        return any(file.state(algorithm) == state for file in files) or self._is_users(path, state)

    def _algorithm(self) -> str:
        text = read_text(f"{self.path_of(self.repository.common)}/config") or ""
        return "sha256" if "sha256" in text.lower() else "sha1"

    def _is_users(self, path: str, state: State) -> bool:
        relative = os.path.relpath(path, self.repository.worktree)
        return self._history.has(relative, state, self._log)

    def _log(self, path: str, commits: list[str]) -> str:
        with tempfile.TemporaryFile() as names:
            names.write("".join(f"{commit}\n" for commit in commits if commit[:1] != "-").encode())
            names.seek(0)
            options = [commit for commit in commits if commit[:1] == "-"]
            return self.output_of(
                *(*_LOG, *options, "--ignore-missing", "--stdin", "--", path),
                stdin=names.fileno(),
                seconds=_LOG_SECONDS,
            )


def is_visible(view: SandboxView, path: str) -> bool:
    """Return whether a folder is visible to a command and doesn't hide files of git's profile."""
    if path == "/":
        return False
    kinds = [(folder, False) for folder in (*view.hidden, *view.hidden_inside)]
    kinds += [(folder, True) for folder in (*view.readable, *view.writable)]
    around = [(len(folder), is_shown) for folder, is_shown in kinds if is_below(path, folder)]
    if around:
        return max(around)[1]
    return not any(is_below(path, folder) for folder in _OF_THE_SYSTEM)


def find_repository(directory: str) -> Repository | None:
    """Return the repository around a folder. None if there is none, or a link is on the way.

    Args:
        directory: A real path.
    """
    worktree = directory
    while not os.path.lexists(f"{worktree}/.git"):
        if worktree == "/":
            return None
        worktree = os.path.dirname(worktree)  # noqa: PTH120 — text in, text out
    folder = f"{worktree}/.git"
    if (text := read_text(folder)) is not None:
        target = pointer_target(text)
        folder = real_path(os.path.join(worktree, target)) if target else folder  # noqa: PTH118
    return named_repository(folder, worktree)


def named_repository(folder: str, worktree: str) -> Repository | None:
    """Return the repository of a git folder. None if there is none, or a link is on the way."""
    if real_path(folder) != folder or not os.path.isdir(folder):  # noqa: PTH112
        return None
    common = path_in(read_text(f"{folder}/commondir") or "")
    return Repository(worktree, folder, real_path(os.path.join(folder, common)))  # noqa: PTH118


def repository_of(parsed: ParsedCall) -> Repository | None:
    """Return the repository that a call reads or writes, or None."""
    directory = real_path(parsed.directory)
    worktree = real_path(os.path.join(directory, parsed.work_tree or ""))  # noqa: PTH118
    if parsed.git_dir is not None:
        folder = real_path(os.path.join(directory, parsed.git_dir))  # noqa: PTH118
        return named_repository(folder, worktree)
    repository = find_repository(directory)
    if repository is None or parsed.work_tree is None:
        return repository
    return attrs.evolve(repository, worktree=worktree)
