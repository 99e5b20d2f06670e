"""Runs a git call where a repository is writable and nothing but git can run.

Only git's own binaries and their libraries exist there. Whatever can be written can't be executed, and there is no shell. So it
does not matter which programs the configuration, the attributes or the state of the repository name. A few transports need a
shell between two gits; it is there for them alone.
"""

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
from ._places import Places

logger = logging.getLogger("amplifier.modules.tools")

HELPER = str(Path(__file__).with_name("_noexec.py"))
_PROBING = 30.0
_DYING = 10.0
"""Seconds for processes that were killed to be gone."""
_HOME = "/h"
# git starts these under names of their own; they are all one program.
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

# Settings that a call gets whatever the repository says. They are for function alone: without them git would stop at the first
# program that it can't start.
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
    """A program in a bubblewrap that tells the id of the first process inside.

    Attributes:
        process: bubblewrap.
        told: The descriptor that it tells it by; `wait` closes it.
    """

    process: subprocess.Popen[bytes]
    told: int

    def wait(self, stopping: Sequence[int], seconds: float | None = None) -> int:
        """Wait until all processes in the sandbox are gone; return the exit code of the program.

        bubblewrap itself ends earlier than they do, if it is killed or if the program left some running.

        Args:
            stopping: Descriptors that end it when they become readable.
            seconds: How long it may take.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self.told)
            ended = os.pidfd_open(self.process.pid)
            stack.callback(os.close, ended)
            poll = select.poll()
            for descriptor in (ended, self.told, *stopping):
                poll.register(descriptor, select.POLLIN)
            text, first = b"", None
            while True:
                ready = {
                    descriptor
                    for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)
                }
                if self.told in ready:
                    data = os.read(self.told, 4096)
                    text += data
                    if not data:
                        poll.unregister(self.told)
                    elif first is None and (found := re.search(rb'"child-pid": (\d+)\s', text)):
                        # It is gone already if it can't be opened.
                        with contextlib.suppress(OSError):
                            first = os.pidfd_open(int(found[1]))
                            stack.callback(os.close, first)
                elif ended in ready:
                    break
                elif not ready or ready & {*stopping}:
                    with contextlib.suppress(OSError):
                        os.killpg(self.process.pid, signal.SIGKILL)
                    stopping, seconds = (), None
                    for descriptor in ready - {self.told, ended}:
                        poll.unregister(descriptor)
            code = self.process.wait()
            if first is not None and not select.select([first], [], [], _DYING)[0]:
                logger.warning(
                    "tool bash: processes of a git call do not end although they were killed"
                )
        return code if code >= 0 else 128 - code


@contextlib.contextmanager
def told_by_bubblewrap() -> Iterator[tuple[int, tuple[str, ...], int]]:
    """Have a pipe for the start of a bubblewrap: what is written to, the option, and what is read from, which stays open."""
    told, telling = os.pipe()
    try:
        yield telling, ("--info-fd", str(telling)), told
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(telling)


@attrs.frozen(kw_only=True)
class GitProfile:
    """How git calls are run.

    Attributes:
        bubblewrap: The program.
        git: git itself.
        core: Its folder for further programs.
        libraries: What they load.
        confinement: Options of every bubblewrap, see `_confinement`.
        filter: The filter of system calls.
        network: Whether calls reach the network.
        limits: Limits of resources.
        user: The harmless part of the user's configuration, as the text of a file.
        user_in_sandbox: The same for git that a command runs itself.
        aliases: Of the user.
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
        places: Places,
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
            arguments: Of git.
            places: What commands see and may change.
            roots: The writable folders.
            writable: The git folders of the repository, which are writable here, each as an open descriptor.
            directory: Where it runs.
            environment: Further variables.
            files: Further files that it may read, by the path that it knows them by.
            streams: Its input, output and errors.
            scratch: A folder for what this call needs.
            shown: Further folders that it reads.
            opened: Protected places that it may change all the same.
        """
        folders = list(writable)
        command = [self.bubblewrap, *self.confinement, *(("--share-net",) if self.network else ())]
        command += self._root(shell=_subcommand(arguments) in _TRANSPORTS)
        for path in sorted(shown):
            command += ("--ro-bind", path, path)
        for path in places.hidden:
            if any(is_below(path, folder) for folder in shown):
                command += (
                    ("--tmpfs", path) if Path(path).is_dir() else ("--ro-bind", "/dev/null", path)
                )
        for root in sorted({*roots, *places.pinned}):
            command += ("--bind", root, root)
        binds = []
        for number, (path, descriptor) in enumerate(writable.items()):
            source = f"{scratch}/opened{number}"
            Path(source).mkdir(exist_ok=True)
            binds.append((path, identity_of(descriptor), source))
            command += ("--bind", source, path)
            # No call has to change a hook, and many can write a file.
            if stat.S_ISDIR(_mode_in(descriptor, "hooks")):
                command += ("--ro-bind", f"{source}/hooks", f"{path}/hooks")
        for path in places.protected:
            is_open = any(is_below(path, folder) for folder in folders) or _is_pointer(
                path, folders
            )
            if not is_open and path not in opened and os.path.lexists(path):
                command += ("--ro-bind", path, path)
        for path in places.hidden_inside:
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
        given = json.dumps(
            {"noexec": [*sorted({*shown, *roots})], "binds": binds, "limits": dict(self.limits)}
        )
        environment = {**self._environment(writable.values()), **environment}
        return start_in_bubblewrap(
            given, command, [self.git, *arguments], self.filter, environment, streams
        )

    def _root(self, *, shell: bool) -> list[str]:
        files = {self.git: self.git, f"{self.core}/git": self.git}
        if self.network and os.path.exists(f"{self.core}/git-remote-http"):  # noqa: PTH110 - text in
            files[f"{self.core}/git-remote-http"] = os.path.realpath(f"{self.core}/git-remote-http")
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
        # A filter that can't run must not let the raw content pass.
        for name in filters(f"/proc/self/fd/{number}" for number in git_folders):
            pairs[f"filter.{name}.required"] = "true"
        environment = {
            "PATH": os.path.dirname(self.git),  # noqa: PTH120 - text in, text out
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
    """Return what a call is to do: the first word that is neither an option nor the value of one."""
    rest = iter(arguments)
    for word in rest:
        if word == "-c":
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


def start_in_bubblewrap(
    given: str,
    wrapper: Sequence[str],
    arguments: Sequence[str],
    system_calls: bytes,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
) -> Started:
    """Start a program in a bubblewrap that `_noexec` prepares the mounts for.

    Args:
        given: The argument of `_noexec`.
        wrapper: bubblewrap with its options.
        arguments: The program and its arguments.
        system_calls: The filter.
        environment: All the program gets to see.
        streams: Its input, output and errors.
    """
    with told_by_bubblewrap() as (telling, option, told):
        descriptor = os.memfd_create("filter")
        try:
            os.write(descriptor, system_calls)
            os.lseek(descriptor, 0, os.SEEK_SET)
            process = subprocess.Popen(
                isolated_python_command(
                    HELPER, given, *wrapper, "--seccomp", str(descriptor), *option, "--", *arguments
                ),
                env=dict(environment),
                cwd="/",
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                pass_fds=(descriptor, telling),
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        return Started(process, told)


def identity_of(descriptor: int) -> tuple[int, int]:
    """Return the device and inode of an open folder."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _mode_in(folder: int, name: str) -> int:
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except OSError:
        return 0


def _is_pointer(path: str, folders: Iterable[str]) -> bool:
    """Check whether a place is the file ``.git`` of a work tree of these repositories: git removes it with the work tree."""
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
    """Find out whether git calls can be run here; starts programs to try it.

    Returns:
        The profile, or None with the reason.
    """
    git = git_program()
    if git is None:
        return None, "git is not installed"
    core = _exec_path(git)
    programs = [git, *([f"{core}/git-remote-http"] if network else []), "/bin/sh"]
    libraries = _libraries(tuple(programs))
    if libraries is None:
        return None, "the libraries of git are not known: ldd is missing"
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
    """Try once for each pair of programs; what the kernel allows does not change while this process runs."""
    if (bubblewrap, git) not in _problems:
        _problems[bubblewrap, git] = attempt()
    return _problems[bubblewrap, git]


def _try(profile: GitProfile) -> str | None:
    nothing = Places(
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
                places=nothing,
                roots=[work],
                writable={},
                directory=work,
                environment={},
                files={},
                streams=(null.fileno(), null.fileno(), errors.fileno()),
                scratch=scratch,
            )
        code = started.wait((), _PROBING)
        errors.seek(0)
        text = " ".join(errors.read(1000).decode(errors="replace").split())
    return (
        None
        if code == 0
        else f"git does not run in a sandbox of its own: {text or f'exit code {code}'}"
    )


@functools.cache
def _exec_path(git: str) -> str:
    done = subprocess.run(
        [git, "--exec-path"], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    return done.stdout.strip()


@functools.cache
def _libraries(programs: tuple[str, ...]) -> tuple[str, ...] | None:
    ldd = find_program("ldd")
    if ldd is None:
        return None
    found = dict[str, None]()
    for program in programs:
        real = os.path.realpath(program)
        done = subprocess.run(
            [ldd, real],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.defpath, "LC_ALL": "C"},
        )
        found |= dict.fromkeys(re.findall(r"(/\S+) \(0x", done.stdout))
    # Names are looked up by libraries that libc loads by itself.
    for folder in dict.fromkeys(os.path.dirname(path) for path in found if "/libc.so" in path):  # noqa: PTH120 - as above
        for name in ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"):
            if os.path.exists(f"{folder}/{name}"):  # noqa: PTH110 - text in
                found[f"{folder}/{name}"] = None
    return tuple(found)


# ── configuration of the user ─────────────────────────────────────────────────────────────────────


def _user_configuration() -> tuple[str, str, dict[str, str]]:
    """Return the harmless part of the user's configuration, for git in its profile and in the sandbox, and the aliases."""
    pairs = [*_user_settings("--system"), *_user_settings("--global")]
    names = dict.fromkeys(
        key.rpartition(".")[0][len("filter.") :] for key, _ in pairs if key.startswith("filter.")
    )
    required = "".join(f'[filter "{name}"]\n\trequired = true\n' for name in names)
    # In the sandbox there are programs, so what the machine sets for everyone is left as it is.
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
    done = subprocess.run(
        command, capture_output=True, cwd="/", env={"PATH": os.defpath, **variables}, check=False
    )
    rows = done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return [
        (key, value if is_given else "true")
        for key, is_given, value in (row.partition("\n") for row in rows)
    ]


def filters(git_folders: Iterable[str]) -> list[str]:
    """Return the names of the filters that repositories define."""
    found = dict[str, None]()
    for folder in git_folders:
        try:
            text = Path(folder, "config").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue
        for key, _ in settings(text) or ():
            if key.startswith("filter."):
                found[key.rpartition(".")[0][len("filter.") :]] = None
    return list(found)
