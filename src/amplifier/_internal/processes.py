"""The processes of this machine: which there are, which are below another, and signals to exactly one of them."""

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
    """A process at the time it was looked at; id and start time together belong to no other."""

    pid: int
    started: int
    parent: int = attrs.field(eq=False)
    group: int = attrs.field(eq=False)
    state: str = attrs.field(eq=False)

    @property
    def is_alive(self) -> bool:
        """Whether it can still do anything; a zombie cannot."""
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
    """A process as ``/proc`` describes it, if it is there; without ``/proc`` it is known by its id only."""
    if not HAS_PROC:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return Process(pid, 0, 0, 0, "")
    text = read_proc(f"/proc/{pid}/stat")
    if not text:
        return None
    # The program's name is in brackets and may hold spaces and brackets itself.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[2]), fields[0].decode())


def is_running(process: Process) -> bool:
    """Whether exactly this process is still there and alive."""
    seen = look_at(process.pid)
    return seen is not None and seen == process and seen.is_alive


def all_processes() -> Iterator[Process]:
    """Every process that ``/proc`` shows."""
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() and (process := look_at(int(entry.name))):
                yield process


def descendants(pid: int) -> list[Process]:
    """The processes below one, zombies included; none without ``/proc``."""
    by_parent: dict[int, list[Process]] = {}
    for process in all_processes() if HAS_PROC else ():
        by_parent.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    pending = [pid]
    while pending:
        children = by_parent.pop(pending.pop(), [])
        found += children
        pending += [child.pid for child in children]
    return found


def send_to_group(group: int, number: int) -> bool:
    """Signal a group; whether it has members."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # on macOS: only zombies are left, or only processes of another user
        return False
    return True


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process, never one that got its id later."""
    with contextlib.suppress(OSError):  # gone, or another user's
        try:
            descriptor = os.pidfd_open(process.pid)
        except (
            AttributeError,
            OSError,
        ):  # no such call in this Python or this kernel, or gone; then it takes two steps
            if look_at(process.pid) == process:
                os.kill(process.pid, number)
            return
        try:
            if look_at(process.pid) == process:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
