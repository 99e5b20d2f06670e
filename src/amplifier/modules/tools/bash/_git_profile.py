"""Run a git call where the repository is writable and no other program can run."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import select
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from amplifier._internal.programs import find_program, is_below, isolated_python_command

from ._git_files import git_program, harmless_text, pointer_target, read_text, settings
from ._sandbox_paths import SandboxView

# Only the binaries of git and their libraries exist there. Writable folders aren't executable, and
# there is no shell. So the programs that the configuration, the attributes or the state of the
# repository name can't run. A few transports need a shell between two gits, and only they have one.

logger = logging.getLogger("amplifier.modules.tools")

HELPER = str(Path(__file__).with_name("_noexec.py"))
_PROBE_SECONDS = 30.0
_KILL_SECONDS = 10.0
"""Seconds to wait until killed processes have ended."""
_HOME = "/h"
# git starts these programs by their names, but all of them are the same program.
_LINKS = (
    *(
        "upload-pack",
        "receive-pack",
        "upload-archive",
        "index-pack",
        "unpack-objects",
        "rev-list",
        "pack-objects",
    ),
    *("merge-recursive", "merge-ort", "merge-subtree", "merge-ours", "fetch-pack", "send-pack"),
)
_TRANSPORTS = frozenset(("clone", "fetch", "pull", "push"))
_FOR_THE_NETWORK = (
    *(
        "/etc/resolv.conf",
        "/etc/hosts",
        "/etc/nsswitch.conf",
        "/etc/ssl",
        "/etc/pki",
        "/etc/ca-certificates",
    ),
    "/usr/share/ca-certificates",
)
_ORDINARY_FILES = (
    "/etc/passwd",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/usr/share/git-core/templates/info",
)

# Every call gets these settings, which override those of the repository. They aren't needed for
# safety. Without them, git would stop at the first program that it can't start.
_OFF = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.editor": ":",
    "sequence.editor": ":",
    "core.pager": "",
    "core.askPass": "",
    "core.sshCommand": "/nonexistent",
    "core.alternateRefsCommand": "",
    "credential.helper": "",
    "diff.external": "",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "protocol.ext.allow": "never",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "safe.bareRepository": "explicit",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "init.templateDir": "",
}


@attrs.frozen
class Started:
    """A program that was started in bubblewrap.

    Attributes:
        process: The process of bubblewrap.
        info: A descriptor from which the id of the first process inside is read. `wait` closes it.
    """

    process: subprocess.Popen[bytes]
    info: int

    def wait(self, stopping: Sequence[int], seconds: float | None = None) -> int:
        """Wait for the end of all processes in the sandbox. Return the exit code of the program.

        bubblewrap itself ends earlier if it is killed, or if the program left some running.

        Args:
            stopping: Descriptors that end the program when they become readable.
            seconds: Maximum time in seconds. None for no limit.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self.info)
            ended = os.pidfd_open(self.process.pid)
            stack.callback(os.close, ended)
            poll = select.poll()
            for descriptor in (ended, self.info, *stopping):
                poll.register(descriptor, select.POLLIN)
            text, first = b"", None
            while True:
                ready = {
                    descriptor
                    for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)
                }
                if self.info in ready:
                    data = os.read(self.info, 4096)
                    text += data
                    if not data:
                        poll.unregister(self.info)
                    elif first is None and (match := re.search(rb'"child-pid": (\d+)\s', text)):
                        # A process that can't be opened has ended.
                        with contextlib.suppress(OSError):
                            first = os.pidfd_open(int(match[1]))
                            stack.callback(os.close, first)
                elif ended in ready:
                    break
                elif not ready or ready & {*stopping}:
                    with contextlib.suppress(OSError):
                        os.killpg(self.process.pid, signal.SIGKILL)
                    stopping, seconds = (), None
                    for descriptor in ready - {self.info, ended}:
                        poll.unregister(descriptor)
            code = self.process.wait()
            if first is not None and not select.select([first], [], [], _KILL_SECONDS)[0]:
                logger.warning(
                    "tool bash: processes of a git call do not end although they were killed"
                )
        return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _info_pipe() -> Iterator[tuple[int, tuple[str, ...], int]]:
    """Open a pipe for the information of a bubblewrap that is started inside the context.

    The context yields the end to write to, the option for bubblewrap, and the end to read from,
    which stays open.
    """
    info, writing = os.pipe()
    try:
        yield writing, ("--info-fd", str(writing)), info
    except BaseException:
        os.close(info)
        raise
    finally:
        os.close(writing)


@attrs.frozen(kw_only=True)
class GitProfile:
    """The programs and settings for git calls.

    Attributes:
        bubblewrap: The path of bubblewrap.
        git: The path of git.
        core: The folder of git's further programs.
        libraries: The libraries that they load.
        confinement: Options of every bubblewrap.
        filter: The filter of system calls.
        network: True if calls may use the network.
        limits: Resource limits.
        user: The harmless part of the user's configuration, as the text of a file.
        user_in_sandbox: The configuration for a git that a command runs itself.
        aliases: The aliases of the user.
    """

    bubblewrap: str
    git: str
    core: str
    libraries: tuple[str, ...]
    confinement: tuple[str, ...]
    filter: bytes
    network: bool
    limits: Mapping[str, int]
    user: str
    user_in_sandbox: str
    aliases: Mapping[str, str] = attrs.field(factory=dict)

    def start(
        self,
        arguments: Sequence[str],
        *,
        view: SandboxView,
        roots: Sequence[str],
        writable: Mapping[str, int],
        directory: str,
        environment: Mapping[str, str],
        files: Mapping[str, str],
        streams: tuple[int, int, int],
        scratch: str,
        shown: Sequence[str] = (),
        opened: Sequence[str] = (),
    ) -> Started:
        """Start a call.

        Args:
            arguments: The arguments of git.
            view: The file system of commands.
            roots: The writable folders.
            writable: The git folders that the call may change, with their descriptors.
            directory: The folder that it runs in.
            environment: Further environment variables.
            files: Copies of further files that it may read, by their path in the call.
            streams: The descriptors of its standard input, output and error.
            scratch: A folder for temporary files.
            shown: Further folders that it may read.
            opened: Protected paths that it may change nevertheless.
        """
        folders = list(writable)
        command = [self.bubblewrap, *self.confinement, *(("--share-net",) if self.network else ())]
        command += self._root(shell=_subcommand(arguments) in _TRANSPORTS)
        for path in sorted(shown):
            command += ("--ro-bind", path, path)
        for path in view.hidden:
            if any(is_below(path, folder) for folder in shown):
                command += (
                    ("--tmpfs", path) if Path(path).is_dir() else ("--ro-bind", "/dev/null", path)
                )
        for root in sorted({*roots, *view.pinned}):
            command += ("--bind", root, root)
        binds = []
        for number, (path, descriptor) in enumerate(writable.items()):
            source = f"{scratch}/opened{number}"
            Path(source).mkdir(exist_ok=True)
            binds.append((path, identity_of(descriptor), source))
            command += ("--bind", source, path)
            # No call needs to change a hook, and many calls can write a file.
            if stat.S_ISDIR(_mode_in(descriptor, "hooks")):
                command += ("--ro-bind", f"{source}/hooks", f"{path}/hooks")
        for path in view.protected:
            is_open = any(is_below(path, folder) for folder in folders) or _is_pointer(
                path, folders
            )
            if not is_open and path not in opened and os.path.lexists(path):
                command += ("--ro-bind", path, path)
        for path in view.hidden_inside:
            command += (
                ("--tmpfs", path) if Path(path).is_dir() else ("--ro-bind", "/dev/null", path)
            )
        for path, copy in files.items():
            command += ("--ro-bind", copy, path)
        user = f"{scratch}/gitconfig"
        Path(user).write_text(self.user, encoding="utf-8", errors="surrogateescape")
        command += (
            "--ro-bind",
            user,
            f"{_HOME}/.gitconfig",
            "--remount-ro",
            "/",
            "--chdir",
            directory,
        )
        job = json.dumps(
            {"noexec": [*sorted({*shown, *roots})], "binds": binds, "limits": dict(self.limits)}
        )
        environment = {**self._environment(writable.values()), **environment}
        return start_in_bubblewrap(
            job, command, [self.git, *arguments], self.filter, environment, streams
        )

    def _root(self, *, shell: bool) -> list[str]:
        files = {self.git: self.git, f"{self.core}/git": self.git}
        remote = f"{self.core}/git-remote-http"
        if self.network and os.path.exists(remote):  # noqa: PTH110 — text in
            files[remote] = os.path.realpath(remote)
        files |= {library: os.path.realpath(library) for library in self.libraries}
        if shell:
            files["/bin/sh"] = os.path.realpath("/bin/sh")
        command = list[str]()
        for place, real in files.items():
            command += ("--ro-bind", real, place)
        for name in _LINKS:
            command += ("--symlink", "git", f"{self.core}/git-{name}")
        if self.network:
            command += ("--symlink", "git-remote-http", f"{self.core}/git-remote-https")
        for path in (*_ORDINARY_FILES, *(_FOR_THE_NETWORK if self.network else ())):
            command += ("--ro-bind-try", os.path.realpath(path), path)
        return [
            *command,
            "--dir",
            _HOME,
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--size",
            "268435456",
            "--tmpfs",
            "/tmp",
        ]

    def _environment(self, git_folders: Iterable[int]) -> dict[str, str]:
        pairs = dict(_OFF)
        # If a filter can't run, git must fail rather than use the raw content.
        for name in filters(f"/proc/self/fd/{number}" for number in git_folders):
            pairs[f"filter.{name}.required"] = "true"
        environment = {
            "PATH": os.path.dirname(self.git),  # noqa: PTH120 — text in, text out
            "HOME": _HOME,
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": f"{_HOME}/.gitconfig",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_EDITOR": ":",
            "GIT_SEQUENCE_EDITOR": ":",
            "GIT_ASKPASS": "",
            "GIT_ALLOW_PROTOCOL": "file:http:https",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_MERGE_AUTOEDIT": "no",
            "GIT_CONFIG_COUNT": str(len(pairs)),
        }
        for number, (key, value) in enumerate(pairs.items()):
            environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return environment


def _subcommand(arguments: Sequence[str]) -> str:
    """Return the subcommand: the first word that is neither an option nor the value of one."""
    rest = iter(arguments)
    for word in rest:
        if word == "-c":
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


def start_in_bubblewrap(
    job: str,
    wrapper: Sequence[str],
    arguments: Sequence[str],
    system_calls: bytes,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
) -> Started:
    """Start a program in bubblewrap, with mounts that `_noexec` prepares.

    Args:
        job: The argument of `_noexec`.
        wrapper: bubblewrap with its options.
        arguments: The program and its arguments.
        system_calls: The filter of system calls.
        environment: The environment variables of the program.
        streams: The descriptors of its standard input, output and error.
    """
    with _info_pipe() as (writing, option, info):
        descriptor = os.memfd_create("filter")
        try:
            os.write(descriptor, system_calls)
            os.lseek(descriptor, 0, os.SEEK_SET)
            process = subprocess.Popen(
                isolated_python_command(
                    HELPER, job, *wrapper, "--seccomp", str(descriptor), *option, "--", *arguments
                ),
                env=dict(environment),
                cwd="/",
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                pass_fds=(descriptor, writing),
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        return Started(process, info)


def identity_of(descriptor: int) -> tuple[int, int]:
    """Return the device and inode of an open file or folder."""
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino


def _mode_in(folder: int, name: str) -> int:
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except OSError:
        return 0


def _is_pointer(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is the file ``.git`` of a work tree of these repositories.

    git removes it together with the work tree.
    """
    target = pointer_target(read_text(path) or "")
    return path.endswith("/.git") and any(
        target.startswith(f"{folder}/worktrees/") for folder in folders
    )


def open_git_profile(
    bubblewrap: str,
    *,
    confinement: tuple[str, ...],
    system_calls: bytes,
    network: bool,
    limits: Mapping[str, int],
) -> tuple[GitProfile | None, str | None]:
    """Make the profile for git calls. Programs are started to find out whether they run here.

    Returns:
        The profile and None, or None and the reason.
    """
    git = git_program()
    if git is None:
        return None, "git is not installed"
    core = _exec_path(git)
    programs = [git, *([f"{core}/git-remote-http"] if network else []), "/bin/sh"]
    libraries = _libraries(tuple(programs))
    if libraries is None:
        return None, "the libraries of git are unknown, because ldd is missing"
    user, user_in_sandbox, aliases = _user_configuration()
    profile = GitProfile(
        bubblewrap=bubblewrap,
        git=git,
        core=core,
        libraries=libraries,
        confinement=confinement,
        filter=system_calls,
        network=network,
        limits=limits,
        user=user,
        user_in_sandbox=user_in_sandbox,
        aliases=aliases,
    )
    problem = _problem(profile.bubblewrap, profile.git, lambda: _try(profile))
    return (None, problem) if problem else (profile, None)


_problems: dict[tuple[str, str], str | None] = {}


def _problem(bubblewrap: str, git: str, attempt: Callable[[], str | None]) -> str | None:
    """Try each pair of programs once, because the permissions of this process don't change."""
    if (bubblewrap, git) not in _problems:
        _problems[bubblewrap, git] = attempt()
    return _problems[bubblewrap, git]


def _try(profile: GitProfile) -> str | None:
    view = SandboxView(
        hidden=(), readable=(), writable=(), pinned=(), protected=(), missing=(), hidden_inside=()
    )
    with (
        tempfile.TemporaryDirectory(prefix="amplifier-git-") as scratch,
        tempfile.TemporaryFile() as errors,
    ):
        work = f"{os.path.realpath(scratch)}/work"
        Path(work).mkdir()
        with Path(os.devnull).open("rb+") as null:
            started = profile.start(
                ["version"],
                view=view,
                roots=[work],
                writable={},
                directory=work,
                environment={},
                files={},
                streams=(null.fileno(), null.fileno(), errors.fileno()),
                scratch=scratch,
            )
        code = started.wait((), _PROBE_SECONDS)
        errors.seek(0)
        text = " ".join(errors.read(1000).decode(errors="replace").split())
    problem = text or f"exit code {code}"
    return None if code == 0 else f"git does not run in a sandbox of its own: {problem}"


@functools.cache
def _exec_path(git: str) -> str:
    result = subprocess.run(
        [git, "--exec-path"], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    return result.stdout.strip()


@functools.cache
def _libraries(programs: tuple[str, ...]) -> tuple[str, ...] | None:
    ldd = find_program("ldd")
    if ldd is None:
        return None
    libraries = dict[str, None]()
    for program in programs:
        real = os.path.realpath(program)
        result = subprocess.run(
            [ldd, real],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.defpath, "LC_ALL": "C"},
        )
        libraries |= dict.fromkeys(re.findall(r"(/\S+) \(0x", result.stdout))
    # libc itself loads libraries to look up names. ldd doesn't list them.
    for libc in [path for path in libraries if "/libc.so" in path]:
        for name in ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"):
            library = f"{libc.rpartition('/')[0]}/{name}"
            if os.path.exists(library):  # noqa: PTH110 — text in
                libraries[library] = None
    return tuple(libraries)


# ── configuration of the user ─────────────────────────────────────────────────────────────────────


def _user_configuration() -> tuple[str, str, dict[str, str]]:
    """Return the harmless part of the user's configuration.

    Returns:
        The text for git in its profile, the text for git in the sandbox, and the aliases.
    """
    pairs = [*_user_settings("--system"), *_user_settings("--global")]
    names = dict.fromkeys(
        key.rpartition(".")[0][len("filter.") :] for key, _ in pairs if key.startswith("filter.")
    )
    required = "".join(f'[filter "{name}"]\n\trequired = true\n' for name in names)
    # There are programs in the sandbox, so the system's configuration is used as it is.
    included = "[include]\n\tpath = /etc/gitconfig\n"
    aliases = {key.partition(".")[2]: value for key, value in pairs if key.startswith("alias.")}
    return (
        harmless_text(pairs) + required,
        included + harmless_text(_user_settings("--global")),
        aliases,
    )


def _user_settings(scope: str) -> list[tuple[str, str]]:
    git = git_program()
    variables = {
        name: os.environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in os.environ
    }
    if git is None or "HOME" not in variables:
        return []
    command = [git, "config", scope, "--includes", "-z", "--list"]
    result = subprocess.run(
        command, capture_output=True, cwd="/", env={"PATH": os.defpath, **variables}, check=False
    )
    rows = result.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return [
        (key, value if has_value else "true")
        for key, has_value, value in (row.partition("\n") for row in rows)
    ]


def filters(git_folders: Iterable[str]) -> list[str]:
    """Return the names of the filters that repositories define."""
    names = dict[str, None]()
    for folder in git_folders:
        try:
            text = Path(folder, "config").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue
        for key, _ in settings(text) or ():
            if key.startswith("filter."):
                names[key.rpartition(".")[0][len("filter.") :]] = None
    return list(names)
