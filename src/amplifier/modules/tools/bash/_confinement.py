"""What a command may do: which files it sees and changes, whether it reaches the network, how much it may use.

`choose_sandbox` decides once per mount how that is enforced; `Sandbox.confined` prepares one command. bubblewrap, which runs a
command in namespaces of its own, and `amplifier._supervisor` enforce it.
"""

from __future__ import annotations

import collections
import functools
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from amplifier._programs import find_program, isolated_python_command
from amplifier._supervisor import MINIMUM_ABI, landlock_abi
from amplifier.errors import ModuleLoadError

from ..._shared.processes import can_supervise
from ._options import BashOptions
from ._own_files import identity, imported_from, own_files_in, own_files_problem, placeholders, remove_redirections
from ._places import PlaceFinder, Places, inside_another, link_home, visible_roots
from ._seccomp import filter_program

# ── bubblewrap ─────────────────────────────────────────────────────────────────────────────────────
# Its command line: the command has its own process ids, network, IPC and mounts; it sees the file system read-only, without the
# places that are hidden, and may change the writable ones.

_PROBING = 30.0
_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--as-pid-1",  # the supervisor's program is the first process: it reports how the command ended
)
_NO_PRIVILEGES = ("--cap-drop", "ALL")
_SYSTEM = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    # Root stays root outside of its namespace for these files, without any capability: core_pattern runs programs there.
    *("--ro-bind-try", "/proc/sys", "/proc/sys", "--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger"),
    *("--ro-bind-try", "/proc/fs", "/proc/fs", "--ro-bind-try", "/proc/driver", "/proc/driver"),
)
# What container runtimes cover, too: names of keys, the kernel's memory, timers and interrupts of all processes.
_KERNEL_FILES = (
    *("/proc/keys", "/proc/key-users", "/proc/kcore", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats"),
    *("/proc/acpi", "/proc/scsi", "/proc/asound", "/proc/interrupts", "/sys/firmware", "/sys/kernel/security"),
)
_MOST_ENTRIES = 20_000
_NO_MORE_NAMESPACES = ("--disable-userns",)
"""Known to bubblewrap since 0.8."""


def bubblewrap_arguments(program: str, places: Places, *, directory: str, network: bool) -> list[str]:
    """The command line, without the command."""
    namespaces = [name for name in _NAMESPACES if not (network and name == "--unshare-net")]
    more = () if _problem(program, _NO_MORE_NAMESPACES) else _NO_MORE_NAMESPACES
    arguments = [program, *namespaces, *_NO_PRIVILEGES, *more, *_SYSTEM]
    for path in _KERNEL_FILES:
        if Path(path).exists():
            arguments += _hide(path)
    for path in places.hidden:
        arguments += _hide(path)
    for path in places.readable:
        arguments += ("--ro-bind", path, path)
    # A mount point cannot be renamed or removed. What is covered would show again if a folder around it could be.
    for path in sorted({*places.writable, *places.pinned}):
        arguments += ("--bind", path, path)
    for path in sorted({*places.protected, *places.missing}):
        arguments += ("--ro-bind", path, path)
    for path in places.hidden_inside:
        arguments += _hide(path)
    for path in foreign_sockets(places.writable):
        arguments += ("--ro-bind-try", "/dev/null", path)
    return [*arguments, "--chdir", directory]


def _hide(path: str) -> tuple[str, ...]:
    return ("--tmpfs", path) if Path(path).is_dir() else ("--ro-bind", "/dev/null", path)


def foreign_sockets(writable: Iterable[str]) -> list[str]:
    """Sockets in the file system: a mount that is read-only, or a network of one's own, does not keep anyone from connecting.

    The kernel lists the names that sockets were bound to. One that was renamed afterwards is looked for in the folder of
    its name; and if a name is relative or has no socket any more, in the writable folders as well, up to a limit.
    """
    try:
        with Path("/proc/net/unix").open(encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.split(maxsplit=7) for line in file]
    except OSError:
        return []
    names = {field[7].rstrip("\n") for field in fields[1:] if len(field) == 8 and not field[7].startswith("@")}
    found = {name for name in names if name.startswith("/") and _is_socket(name)}
    if lost := names - found:
        folders = {os.path.dirname(name) for name in lost if name.startswith("/")}  # noqa: PTH120 - text in, text out
        for folder in folders:
            found |= {entry.path for entry in _entries(folder) if _is_entry_a_socket(entry)}
        found.update(_sockets_below(writable))
    return sorted({os.path.realpath(path) for path in found})


def _sockets_below(folders: Iterable[str]) -> Iterator[str]:
    """Sockets in some trees, breadth first."""
    pending, looked_at = collections.deque(folders), 0
    while pending and looked_at < _MOST_ENTRIES:
        for entry in _entries(pending.popleft()):
            looked_at += 1
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif _is_entry_a_socket(entry):
                yield entry.path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_entry_a_socket(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False  # known without asking the file system once more
    return _is_socket(entry.path)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 - there may be thousands
    except OSError:  # gone, or in a folder of someone else, where commands cannot reach it either
        return False


def bubblewrap_problem(program: str) -> str | None:
    """What keeps bubblewrap from working here; None if it works."""
    return _problem(program, ())


@functools.cache  # it starts a program; what the kernel allows does not change while this process runs
def _problem(program: str, more: tuple[str, ...]) -> str | None:
    arguments = [program, *_NAMESPACES, *_NO_PRIVILEGES, *more, *_SYSTEM, "--", *isolated_python_command("-c", "")]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", timeout=_PROBING, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run: {error}"
    if done.returncode == 0:
        return None
    return f"{program} does not work: {' '.join(done.stderr.split())[:200] or f'exit code {done.returncode}'}"


# ── sandbox ────────────────────────────────────────────────────────────────────────────────────────

SandboxKind: TypeAlias = Literal["bwrap", "landlock", "off"]

_MODULE = "tool-bash"
_MIB = 1 << 20
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Of all devices: terminals of the user, disks, and the memory that programs share are in the same folder."""


@attrs.frozen(kw_only=True)
class Confined:
    """A command as it is started.

    Attributes:
        arguments: The program and its arguments.
        environment: All it gets to see.
        supervision: What the supervisor applies; None for no supervisor.
        explanation: What the sandbox allows, for a command that failed; None without a sandbox.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    supervision: dict[str, Any] | None
    explanation: str | None = None


@attrs.frozen(kw_only=True)
class Sandbox:
    """How the commands of one session are confined.

    Attributes:
        kind: What enforces it.
        program: The path of bubblewrap.
        finder: Which files they see.
    """

    kind: SandboxKind
    options: BashOptions
    program: str = ""
    finder: PlaceFinder | None = None

    @property
    def network(self) -> bool:
        """Whether commands reach the network."""
        return self.kind == "off" or self.options.network

    @contextmanager
    def confined(self, arguments: Sequence[str], directory: str, environment: Mapping[str, str]) -> Iterator[Confined]:
        """Prepare one command, and tidy up after it.

        Args:
            arguments: The shell with its command.
            directory: The working directory, which the command may change.
            environment: What the command gets to see outside of a sandbox.

        Raises:
            ValueError: There is nothing to be confined to, or the agent's own files cannot be protected there.
        """
        if self.finder is None:
            supervision: dict[str, Any] | None = {} if can_supervise() else None
            yield Confined(arguments=arguments, environment=environment, supervision=supervision)
            return
        workspace = self.finder.workspace(directory)
        roots = [workspace, *self.finder.writable]
        if (problem := own_files_problem(roots)) or (self.kind == "landlock" and (problem := own_files_in(roots))):
            raise ValueError(problem)
        limits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self.options.max_file_mb * _MIB,
            "RLIMIT_DATA": self.options.max_memory_mb * _MIB,
        }
        supervision = {"limits": limits, "keyring": True}
        # bubblewrap has a network of its own to forbid it with; Landlock forbids TCP only.
        program = filter_program(inet=self.options.network or self.kind == "bwrap")
        if program is not None:
            supervision["seccomp"] = program
        explanation = (
            f"the sandbox ({self.kind}) allows writing below {', '.join(roots)} only"
            f"{'' if self.options.network else ', allows no network'} and hides the home folder"
        )
        confine = self._in_bubblewrap if self.kind == "bwrap" else self._in_landlock
        with confine(workspace) as (added, changed):
            yield Confined(
                arguments=arguments,
                environment={**environment, **changed},
                supervision=supervision | added,
                explanation=explanation,
            )

    @contextmanager
    def _in_bubblewrap(self, workspace: str) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        assert self.finder is not None
        places = self.finder.places(workspace, None)
        with placeholders(places.missing) as held:
            places = attrs.evolve(places, missing=held)
            wrapper = bubblewrap_arguments(self.program, places, directory=workspace, network=self.options.network)
            added: dict[str, Any] = {
                "wrapper": [os.fsencode(argument) for argument in wrapper],
                "mounts": places.changeable(),
            }
            if os.geteuid() != 0:  # the kernel does not count the processes of root
                # Inside and not before: outside, the processes that the user has already would count.
                added["inner_limits"] = {"RLIMIT_NPROC": self.options.max_processes}
            try:
                yield added, {"TMPDIR": "/tmp"}
            finally:
                remove_redirections(places.redirecting)

    @contextmanager
    def _in_landlock(self, workspace: str) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """With a folder as the home and for temporary files."""
        assert self.finder is not None
        with tempfile.TemporaryDirectory(prefix="amplifier-", ignore_cleanup_errors=True) as folder:
            temporary = os.path.realpath(folder)
            places = self.finder.places(workspace, temporary)
            # One inside of another adds nothing, and a command could replace it.
            writable = [path for path in places.writable if not inside_another(path, places.writable)]
            expected = {path: identity(path) for path in writable}
            link_home(places, temporary)
            landlock = {
                "readable": [*visible_roots(places.hidden), *places.readable],
                "writable": expected,
                "devices": list(_DEVICES),
                "network": self.options.network,
            }
            yield {"landlock": landlock}, {"TMPDIR": temporary, "HOME": temporary}


def sandbox_here() -> tuple[SandboxKind, str | None]:
    """What ``sandbox: "auto"`` means in the current directory, and why commands are not confined if they are not."""
    sandbox, problem = choose_sandbox(BashOptions(), str(Path.cwd()))
    return sandbox.kind, problem


def choose_sandbox(options: BashOptions, directory: str) -> tuple[Sandbox, str | None]:
    """Find out how commands can be confined here; starts programs to try it.

    Returns:
        The sandbox, and a warning if commands are not confined although the plan did not turn the sandbox off.

    Raises:
        ModuleLoadError: The plan asks for a sandbox that does not work here.
    """
    wanted = options.sandbox
    if wanted == "off":
        return Sandbox(kind="off", options=options), None
    problems = []
    finder = None
    if not sys.platform.startswith("linux"):
        problems.append(f"there is no sandbox for {sys.platform}")
    elif not can_supervise():
        problems.append("the supervisor of commands does not start with this interpreter")
    elif os.path.realpath(directory) == "/":
        problems.append("the working directory is /, which leaves nothing to protect")
    else:
        try:
            finder = PlaceFinder(options, directory)
        except ValueError as error:
            raise ModuleLoadError(f"{_MODULE}: {error}", module_id=_MODULE) from None
        roots = [os.path.realpath(directory), *finder.writable]
        if (problem := own_files_problem(roots)) is not None:
            problems.append(problem)
        else:
            if wanted in ("auto", "bwrap"):
                program = find_program("bwrap", avoid=roots)
                problem = "bubblewrap (bwrap) is not installed" if program is None else bubblewrap_problem(program)
                if program is not None and problem is None:
                    return Sandbox(kind="bwrap", options=options, program=program, finder=finder), None
                problems.append(problem or "")
            if wanted in ("auto", "landlock"):
                abi = landlock_abi()
                if abi < MINIMUM_ABI:
                    problems.append(f"the kernel has Landlock {abi or 'not at all'}, {MINIMUM_ABI} is needed")
                elif (problem := own_files_in(roots)) is not None:
                    problems.append(problem)
                else:
                    return Sandbox(kind="landlock", options=options, finder=finder), None
    reason = "; ".join(problems)
    if wanted != "auto":
        raise ModuleLoadError(
            f"{_MODULE}: the plan asks for the sandbox {wanted!r}, which does not work here: {reason}. Install what is "
            "missing, or set sandbox to 'auto' or 'off'",
            module_id=_MODULE,
        )
    return Sandbox(kind="off", options=options), f"commands run without a sandbox: {reason}"


def import_warning(sandbox: Sandbox, directory: str) -> str | None:
    """That this process imports from folders that its commands may change; None if it does not."""
    if sandbox.finder is None:
        return None
    found = imported_from([os.path.realpath(directory), *sandbox.finder.writable])
    return (
        f"this process imports Python modules from {', '.join(found)}, which commands may change; start it with `python -P`, "
        "or choose another working directory"
        if found
        else None
    )
