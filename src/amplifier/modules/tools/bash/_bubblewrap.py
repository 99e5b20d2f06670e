"""The command line of bubblewrap, which runs a command in namespaces of its own.

The command has its own process ids, network, IPC and mounts; it sees the file system read-only, without the places that are
hidden, and may change the writable ones.
"""

from __future__ import annotations

import collections
import functools
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from amplifier._programs import isolated_python_command

from ._places import Places

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
