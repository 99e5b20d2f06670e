"""The processes of this machine, their descendants, and signals to exactly one of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import attrs

HAS_PROC = Path("/proc/self/stat").is_file()


@attrs.frozen
class Process:
    """A process at one time. Its id and start time together are unique."""

    pid: int
    started: int
    parent: int = attrs.field(eq=False)
    group: int = attrs.field(eq=False)
    state: str = attrs.field(eq=False)

    @property
    def is_alive(self) -> bool:
        """Whether the process is not a zombie."""
        return self.state not in ("Z", "X", "x")


def read_proc(path: str, size: int = 1024) -> bytes:
    """Return the beginning of a file of ``/proc``, empty if its process is gone or another user's.

    It is four times as fast as a Path would be.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, size)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def look_at(pid: int) -> Process | None:
    """Return a process if it exists. Without ``/proc``, only its id is known."""
    if not HAS_PROC:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return Process(pid, 0, 0, 0, "")
    text = read_proc(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name of the program is in brackets, and may contain spaces and brackets.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[2]), fields[0].decode())


def is_running(process: Process) -> bool:
    """Return whether exactly this process still exists and is alive."""
    current = look_at(process.pid)
    return current is not None and current == process and current.is_alive


def all_processes() -> Iterator[Process]:
    """Yield every process that ``/proc`` shows."""
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() and (process := look_at(int(entry.name))):
                yield process


def descendants(pid: int) -> list[Process]:
    """Return all descendants of a process, including zombies. Without ``/proc`` there are none."""
    by_parent: dict[int, list[Process]] = {}
    for process in all_processes() if HAS_PROC else ():
        by_parent.setdefault(process.parent, []).append(process)
    below: list[Process] = []
    pending = [pid]
    while pending:
        children = by_parent.pop(pending.pop(), [])
        below += children
        pending += [child.pid for child in children]
    return below


def send_to_group(group: int, number: int) -> bool:
    """Signal a process group, and return whether it has members."""
    # On macOS, PermissionError means that only zombies or processes of another user are left.
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process, never one that got its id later."""
    # The process may have ended, or belong to another user.
    with contextlib.suppress(OSError):
        try:
            descriptor = os.pidfd_open(process.pid)
        # This Python or this kernel may lack the call, so use two steps instead.
        except (AttributeError, OSError):
            if look_at(process.pid) == process:
                os.kill(process.pid, number)
            return
        try:
            if look_at(process.pid) == process:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
