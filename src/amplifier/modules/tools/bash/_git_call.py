"""Runs one git call of a sandboxed command for the broker, and looks at the repository afterwards."""

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
from ._git_files import Finding, findings, path_in, pointer_target, read_text, settings, take_out
from ._git_history import MISSING, State, TrackedPlaces, UsersHistory, files_at
from ._git_profile import GitProfile, start_in_bubblewrap
from ._git_steps import Steps, steps_in
from ._git_words import Refused, Words, check_words
from ._own_files import folder_of
from ._places import Places, inside_another

ADVICE = "ask the user to run it in a terminal, or do it another way"
Bind: TypeAlias = tuple[str, tuple[int, int], str]
"""A folder, what has to lie there, and where it is mounted outside of the sandbox."""
_FETCHING = frozenset(("fetch", "pull", "fetch-pack", "remote", "send-pack", "push"))
_CONFIGURATIONS = ("config", "config.worktree")
# The profile has files of its own there.
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
class Request:
    """A call as it was handed over.

    Attributes:
        words: What it says.
        variables: Of its environment.
        files: Copies of files that only the command has, by their path.
        streams: Its input, output and errors.
        stopping: Descriptors that end it when they become readable.
    """

    words: Words
    variables: Mapping[str, str]
    files: Mapping[str, str]
    streams: tuple[int, int, int]
    stopping: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Surroundings:
    """What all calls of one command have in common.

    Attributes:
        profile: How git is run.
        places: What the command sees and may change.
        roots: The writable folders.
        temporary: Folders that are empty for each command.
        wrapper: Returns the command line of bubblewrap for a hook: further mounts and the folder.
        limits: Limits of resources for hooks.
        environment: Of the command.
        baselines: Shared by all commands of the session.
        obeyed: Returns whether a protected place is one that git may write with the user's content.
    """

    profile: GitProfile
    places: Places
    roots: Sequence[str]
    temporary: Sequence[str]
    wrapper: Callable[[Sequence[str], str], list[str]]
    limits: Mapping[str, int]
    environment: Mapping[str, str]
    baselines: Baselines
    obeyed: Callable[[str], bool]


# ── calls at the same time ────────────────────────────────────────────────────────────────────────


@attrs.define
class _Baseline:
    findings: set[Finding]
    texts: dict[str, str]
    calls: int = 0


class Baselines:
    """What repositories had before the calls that run now.

    A pipe between two calls needs both at once. They share what was there before the first one, so that
    none takes the changes of another for the user's. So do the calls of all sessions of this process.
    """

    _lock: ClassVar = threading.Lock()
    _known: ClassVar[dict[str, _Baseline]] = {}

    def __init__(self) -> None:
        self.contents: set[Any] = set()

    @contextlib.contextmanager
    def kept(self, folder: str, opened: str, say: Callable[[str], None]) -> Iterator[None]:
        """Take out of a git folder what the calls inside the context have brought.

        Args:
            folder: Its path.
            opened: The same folder, which is open.
            say: Gets a sentence about each file.
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
    """Yield the findings with paths from the folder."""
    for finding in findings(opened):
        yield attrs.evolve(finding, path=finding.path.removeprefix(f"{opened}/"))


# ── one call ──────────────────────────────────────────────────────────────────────────────────────


class GitCall:
    """One call.

    Args:
        surroundings: What it shares with others.
        repository: The protected repository that it may change.
        request: The call.
        scratch: A folder for what it needs.
        note: Gets a sentence about what was taken out.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        repository: Repository,
        request: Request,
        scratch: str,
        note: Callable[[str], None],
    ) -> None:
        self.surroundings = surroundings
        self.repository = repository
        self.request = request
        self.scratch = scratch
        self._note = note
        self._errors = request.streams[2]
        self.opened: dict[str, int] = {}
        self._tracked: TrackedPlaces | None = None
        self._shown: list[str] = []

    def say(self, text: str) -> None:
        """Tell the caller of git."""
        # A pipe that no one reads must not keep this thread waiting: what is writable takes so much.
        poll = select.poll()
        poll.register(self._errors, select.POLLOUT)
        with contextlib.suppress(OSError):
            if poll.poll(0):
                os.write(
                    self._errors, f"amplifier: {text}\n".encode(errors="replace")[: select.PIPE_BUF]
                )

    def run(
        self, tracked: Callable[[Repository], TrackedPlaces], steps: Callable[[GitCall], int]
    ) -> int:
        """Run it; returns the exit code.

        Args:
            tracked: Returns the protected places of the work tree that git may write.
            steps: Runs git itself and what comes with it; returns the exit code.
        """
        words = self.request.words
        try:
            check_words(words, self.request.variables, self.repository.common)
            self._check_targets()
            with self._open_folders():
                self._shown = [*self._folders_to_read()]
                self._tracked = tracked(self.repository)
                code = steps(self)
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
                    self.surroundings.baselines.kept(
                        folder, self.path_of(folder), self._note_and_say
                    )
                )
            yield

    def path_of(self, folder: str) -> str:
        """Return the path of a git folder that is open, which nothing can be swapped into."""
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
        if self.request.words.subcommand == "push":
            others = self.surroundings.places.repositories
            folders += [path for path in others if Path(path).is_dir() and path not in folders]
        return folders

    # ── folders besides the work tree ──

    def _check_targets(self) -> None:
        words, roots = self.request.words, self.surroundings.roots
        if words.subcommand == "worktree" and words.positional[:1] in (("add",), ("move",)):
            for word in words.positional[1:]:
                path = os.path.normpath(os.path.join(words.directory, word))  # noqa: PTH118
                is_inside = any(is_below(path, root) for root in roots)
                if inside_another(path, self.surroundings.temporary) and not is_inside:
                    raise Refused(f"{path} is empty for each command, so a work tree there is lost")
                if not is_inside and word.startswith(("/", "..")):
                    raise Refused(f"{path} is outside of the folders that commands may change")

    def _folders_to_read(self) -> Iterator[str]:
        """Yield folders outside of the work tree that git has to read: other repositories, and objects that are shared."""
        repository, roots = self.repository, self.surroundings.roots
        if not any(is_below(repository.worktree, root) for root in roots):
            yield repository.worktree
        pending = [f"{self.path_of(repository.common)}/objects"]
        for objects in pending[:10]:
            for line in (read_text(f"{objects}/info/alternates") or "").splitlines():
                real = f"{repository.common}/objects" if objects == pending[0] else objects
                path = real_path(os.path.join(real, line))  # noqa: PTH118 - text in, text out
                if (
                    line
                    and not line.startswith("#")
                    and not any(is_below(path, root) for root in roots)
                ):
                    if not self.sees(path):
                        raise Refused(
                            f"objects of this repository are in {path}, which commands can't see; name the folder as"
                            " readable in the plan, or run git repack -a -d and remove .git/objects/info/alternates"
                        )
                    yield path
                    pending.append(path)
        if self.request.words.subcommand not in _FETCHING:
            return
        for path in self._remotes():
            if any(is_below(path, root) for root in roots):
                continue
            if self.request.words.subcommand == "push":
                raise Refused(f"{path} is outside of the folders that commands may change")
            if not self.sees(path):
                raise Refused(f"commands can't see {path}; name the folder as readable in the plan")
            yield path

    def _remotes(self) -> Iterator[str]:
        """Yield the repositories of this machine that the call is about."""
        words = self.request.words
        pairs = settings(read_text(f"{self.path_of(self.repository.common)}/config") or "") or []
        urls = {key: value for key, value in pairs if re.fullmatch(r"remote\..*\.(push)?url", key)}
        named = [word for word in words.positional if f"remote.{word}.url" in urls]
        if words.subcommand == "push":
            chosen = [
                urls.get(f"remote.{name}.pushurl", urls[f"remote.{name}.url"]) for name in named[:1]
            ]
            chosen = chosen or ([*words.positional[:1]] or list(urls.values()))
        else:
            chosen = [*urls.values(), *words.positional]
        for url in chosen:
            text = url.removeprefix("file://")
            path = os.path.normpath(os.path.join(words.directory, text))  # noqa: PTH118 - text in, text out
            if url in urls.values():
                path = os.path.normpath(os.path.join(self.repository.worktree, text))  # noqa: PTH118
            for each in (path, f"{path}.git"):
                if os.path.isdir(each) and (  # noqa: PTH112
                    os.path.lexists(f"{each}/.git") or os.path.isdir(f"{each}/objects")  # noqa: PTH112
                ):
                    yield real_path(each)

    def sees(self, path: str) -> bool:
        """Check whether the command sees a folder, which the profile can show as well."""
        return is_seen(self.surroundings.places, path)

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
        """Run git in its profile; returns its exit code."""
        request = self.request
        kept = ("GIT_AUTHOR_", "GIT_COMMITTER_", "TZ")
        environment = {
            name: value for name, value in request.variables.items() if name.startswith(kept)
        }
        if request.words.git_dir is not None:
            environment |= {
                "GIT_DIR": self.repository.folder,
                "GIT_WORK_TREE": self.repository.worktree,
            }
        elif request.words.work_tree is not None:
            environment |= {"GIT_WORK_TREE": self.repository.worktree}
        started = self.surroundings.profile.start(
            arguments,
            places=self.surroundings.places,
            roots=self.surroundings.roots,
            writable=self.opened,
            directory=directory or request.words.directory,
            environment={**environment, **(variables or {})},
            files={**request.files, **(files or {})},
            streams=streams or request.streams,
            scratch=tempfile.mkdtemp(dir=self.scratch),
            shown=self._shown,
            opened=self._tracked.places if self._tracked else (),
        )
        return started.wait(request.stopping, seconds)

    def output_of(self, *arguments: str, **options: Any) -> str:
        """Run git in its profile, at the top of the work tree, and return what it printed."""
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
            binds: Folders that it needs.
            mounts: Options for further mounts.
            arguments: The program and its arguments.
            stdin: Its input.
        """
        profile, errors = self.surroundings.profile, self.request.streams[2]
        given = json.dumps(
            {"noexec": [], "binds": [*binds], "limits": dict(self.surroundings.limits)}
        )
        wrapper = self.surroundings.wrapper(mounts, self.repository.worktree)
        environment = {**self.surroundings.environment, "GIT_EDITOR": ":"}
        with Path(os.devnull).open("rb") as null:
            streams = (null.fileno() if stdin is None else stdin, errors, errors)
            started = start_in_bubblewrap(
                given, wrapper, arguments, profile.filter, environment, streams
            )
            return started.wait(self.request.stopping)

    # ── protected files of the work tree ──

    def settle_alone(self, tracked: TrackedPlaces) -> None:
        """Do so without a call."""
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            self.settle(tracked)

    def settle(self, tracked: TrackedPlaces) -> bool:
        """Put back files that programs obey, unless the user's commits have what is there now; returns whether any was."""
        notes, is_put_back = tracked.settle(self._is_users, self._algorithm())
        for note in notes:
            self._note_and_say(note)
        return is_put_back

    def of_the_user(self, places: Iterable[str]) -> list[str]:
        """Return those of some places that were not there before in which every file is as the user had it."""
        known = self.surroundings.baselines.contents
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            algorithm = self._algorithm()
            return [
                place
                for place in places
                if (files := files_at(place))
                and all(
                    item in known or self._is_users(item[0], item[1].state(algorithm))
                    for item in files.items()
                )
            ]

    def unstage(self) -> list[str]:
        """Take out of the index what programs obey, unless it was there before or the user's commits have it; returns sentences.

        The next commit of the user's would have it, and count as theirs.
        """
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            led, algorithm = {*named_by_configuration(self.repository.worktree)}, self._algorithm()
            has_head = self._has_head()
            # Without a commit there is nothing to compare with, or to go back to.
            rows = self.output_of(*_STAGED, "HEAD" if has_head else _EMPTY_TREE[algorithm])
            known = self.surroundings.baselines.contents
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
        return [
            f"{self.repository.worktree}/{name}: is not staged any more (programs obey it, and no commit of the user's has this content)"
            for name in names
        ]

    def _has_head(self) -> bool:
        text = read_text(f"{self.repository.folder}/HEAD") or ""
        ref = f"{self.repository.common}/{text.removeprefix('ref: ').strip()}"
        # Starting git takes longer.
        if not text.startswith("ref: ") or os.path.isfile(ref):  # noqa: PTH113 - text in
            return True
        return bool(self.output_of("rev-parse", "-q", "--verify", "HEAD"))

    # ── steps that are still to be made ──

    def take_out_steps(self, found: Iterable[Finding]) -> list[str]:
        """Take out files with steps that would write what programs obey, unless the user's commits have it; returns sentences.

        Args:
            found: The files, from `pending`.
        """
        with self._open_folders():
            self._shown = [*self._folders_to_read()]
            led = {*named_by_configuration(self.repository.worktree)}
            judged = [
                attrs.evolve(each, reason=reason)
                for each in found
                if (reason := self._problem_of(steps_in(each.path), led)) is not None
            ]
            return take_out(judged)

    def _problem_of(self, steps: Steps, led: set[str]) -> str | None:
        if not steps.is_clear:
            return "it has a step whose commit can't be told"
        algorithm = self._algorithm()
        users = [f"^{commit}" for commit in self._history.tips()]
        for options, commits in ((["--no-walk"], steps.commits), ([], [*steps.trees, *users])):
            if not commits or commits == users:
                continue
            rows = self._changes(options, commits)
            if rows is None:
                return "git can't tell what its steps change"
            for states, name in rows:
                path = f"{self.repository.worktree}/{name}"
                if self._is_obeyed(path, led) and not all(
                    self._is_known(path, state, algorithm) for state in states
                ):
                    return f"its steps write {path}, which programs obey, and no commit of the user's has this content"
        return None

    def _changes(
        self, options: Sequence[str], commits: Sequence[str]
    ) -> list[tuple[tuple[State, State], str]] | None:
        """Return the states of each file before and after some commits; None if git can't tell."""
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
        found = re.findall(r":(\d+) (\d+) (\w+) (\w+) \w\0([^\0]+)\0", text)
        return (
            None
            if code != 0
            else [
                (((old_mode, old), (mode, new)), name) for old_mode, mode, old, new, name in found
            ]
        )

    def _is_obeyed(self, path: str, led: set[str]) -> bool:
        while is_below(path, self.repository.worktree) and path != self.repository.worktree:
            if path in led or self.surroundings.obeyed(path):
                return True
            path = path.rpartition("/")[0]
        return False

    def _is_known(self, path: str, state: State, algorithm: str) -> bool:
        """Check whether a file may get a content: it has it, had it while commands could not change it, or it is the user's."""
        if state[0] == MISSING:
            return True
        files = {file for at, file in self.surroundings.baselines.contents if at == path}
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


def is_seen(places: Places, path: str) -> bool:
    """Check whether a command sees a folder, and whether git's profile has room for it."""
    if path == "/":
        return False
    kinds = [(each, False) for each in (*places.hidden, *places.hidden_inside)]
    kinds += [(each, True) for each in (*places.readable, *places.writable)]
    around = [(len(each), is_shown) for each, is_shown in kinds if is_below(path, each)]
    return max(around)[1] if around else not any(is_below(path, each) for each in _OF_THE_SYSTEM)


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
        folder = real_path(os.path.join(worktree, target)) if target else folder  # noqa: PTH118
    return named_repository(folder, worktree)


def named_repository(folder: str, worktree: str) -> Repository | None:
    """Return the repository with a git folder; None if it is none, or if a link is on the way."""
    if real_path(folder) != folder or not os.path.isdir(folder):  # noqa: PTH112
        return None
    common = path_in(read_text(f"{folder}/commondir") or "")
    return Repository(worktree, folder, real_path(os.path.join(folder, common)))  # noqa: PTH118


def repository_of(words: Words) -> Repository | None:
    """Return the repository that a call is about."""
    directory = real_path(words.directory)
    worktree = real_path(os.path.join(directory, words.work_tree or ""))  # noqa: PTH118 - text in, text out
    if words.git_dir is not None:
        return named_repository(real_path(os.path.join(directory, words.git_dir)), worktree)  # noqa: PTH118
    found = find_repository(directory)
    return (
        found
        if found is None or words.work_tree is None
        else attrs.evolve(found, worktree=worktree)
    )
