"""The command line of bubblewrap, which runs a command in namespaces of its own.

The command has its own process ids, network, IPC and mounts; it sees the file system read-only, without the places that are
hidden, and may change the writable ones.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from ._places import Places

_PROBING = 30.0
_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
_NO_PRIVILEGES = ("--cap-drop", "ALL")
_SYSTEM = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    # Root stays root outside of its namespace for these files, without any capability: core_pattern runs programs there.
    *("--ro-bind-try", "/proc/sys", "/proc/sys", "--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger"),
    *("--ro-bind-try", "/proc/fs", "/proc/fs", "--ro-bind-try", "/proc/driver", "/proc/driver"),
)
_NO_MORE_NAMESPACES = ("--disable-userns",)
"""Known to bubblewrap since 0.8."""


def bubblewrap_arguments(
    program: str, places: Places, *, directory: str, network: bool, max_processes: int | None
) -> list[str]:
    """The arguments that go before those of a command."""
    namespaces = [name for name in _NAMESPACES if not (network and name == "--unshare-net")]
    more = () if _problem(program, _NO_MORE_NAMESPACES) else _NO_MORE_NAMESPACES
    arguments = [program, *namespaces, *_NO_PRIVILEGES, *more, *_SYSTEM]
    for path in places.hidden:
        arguments += _hide(path)
    for path in places.readable:
        arguments += ("--ro-bind", path, path)
    for path in places.writable:
        arguments += ("--bind", path, path)
    for path in places.hidden_inside:
        arguments += _hide(path)
    for path in _foreign_sockets():
        arguments += ("--ro-bind-try", "/dev/null", path)
    arguments += ("--chdir", directory, "--setenv", "TMPDIR", "/tmp", "--")
    if max_processes is not None:
        # Here and not before: outside, the processes that the user has already would count.
        arguments += (
            "/bin/sh",
            "-c",
            f'ulimit -u {max_processes} 2>/dev/null || ulimit -p {max_processes} || exit 126; exec "$@"',
            "sh",
        )
    return arguments


def _hide(path: str) -> tuple[str, ...]:
    return ("--tmpfs", path) if Path(path).is_dir() else ("--ro-bind", "/dev/null", path)


def _foreign_sockets() -> list[str]:
    """Sockets in the file system: a mount that is read-only, or a network of one's own, does not keep anyone from connecting."""
    try:
        with Path("/proc/net/unix").open(encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.split(maxsplit=7) for line in file]
    except OSError:
        return []
    paths = {field[7].rstrip("\n") for field in fields if len(field) == 8}
    return sorted(path for path in paths if path.startswith("/") and Path(path).exists())


def bubblewrap_problem(program: str) -> str | None:
    """What keeps bubblewrap from working here; None if it works."""
    return _problem(program, ())


@functools.cache  # it starts a program; what the kernel allows does not change while this process runs
def _problem(program: str, more: tuple[str, ...]) -> str | None:
    arguments = [program, *_NAMESPACES, *_NO_PRIVILEGES, *more, *_SYSTEM, "--", "/bin/sh", "-c", ":"]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", timeout=_PROBING, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run: {error}"
    if done.returncode == 0:
        return None
    return f"{program} does not work: {' '.join(done.stderr.split())[:200] or f'exit code {done.returncode}'}"
