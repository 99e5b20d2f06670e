"""Every process that one command started, and how to end them all.

A command leads a session and process group of its own, which one signal reaches. Some processes leave it (``setsid``, a
double fork, a daemon). Below the supervisor, which adopts what loses its parent, they are found in ``/proc`` by descent.
Without a supervisor only the group is known.

Blocking; runs in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
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


def _read(path: str) -> bytes:
    """A file of ``/proc``, empty if its process is gone or another user's; four times as fast as a Path would be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1024)
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
    text = _read(f"/proc/{pid}/stat")
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


class ProcessTree:
    """The processes of one command.

    Args:
        process: Our child: the shell, or its supervisor, which itself is not part of the command.
        group: The process group of the shell; the child's own without a supervisor.
    """

    def __init__(self, process: subprocess.Popen[bytes], group: int) -> None:
        self._process = process
        self._leader = group
        self._is_supervised = group != process.pid
        self._seen: list[Process] = []

    def members(self) -> list[int]:
        """Ids of those that are alive. Without a supervisor it is the group's alone, for as long as it has members."""
        if not self._is_supervised:
            self._process.poll()  # a zombie shell would count as a member
            return [self._leader] if send_to_group(self._leader, 0) else []
        by_parent: dict[int, list[Process]] = {}
        for process in all_processes():
            by_parent.setdefault(process.parent, []).append(process)
        self._seen, pending = [], [self._process.pid]
        while pending:
            children = by_parent.pop(pending.pop(), [])
            self._seen += children
            pending += [child.pid for child in children]
        return sorted(process.pid for process in self._seen if process.is_alive)

    def wrappers(self) -> set[int]:
        """Ids of the wrapper that leads the group, and of the first process in its namespaces, as of the last look."""
        return {self._leader, *(process.pid for process in self._seen if process.parent == self._leader)}

    def send(self, number: signal.Signals) -> list[int]:
        """Signal them all and return who was there to be signalled."""
        members = self.members()
        # First the group, in one step, in which no process can escape by forking.
        send_to_group(self._leader, number)
        for process in self._seen:
            if process.group != self._leader:
                send_signal(process, number)
        return members


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
