"""Every process that one command started, and how to end them all.

A command leads a session and process group of its own, which one signal reaches. Some processes leave it (``setsid``, a
double fork, a daemon). On Linux they are found in ``/proc`` by their session, and by descent from the supervisor, which adopts
what loses its parent. Elsewhere only the group is known.

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
    session: int = attrs.field(eq=False)
    state: str = attrs.field(eq=False)

    @property
    def is_alive(self) -> bool:
        """Whether it can still do anything; a zombie cannot."""
        return self.state not in ("Z", "X", "x")


def _read(path: str, size: int) -> bytes:
    """A file of ``/proc``, empty if its process is gone or another user's; four times as fast as a Path would be."""
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
        return Process(pid, 0, 0, 0, 0, "")
    text = _read(f"/proc/{pid}/stat", 1024)
    if not text:
        return None
    # The program's name is in brackets and may hold spaces and brackets itself.
    fields = text[text.rindex(b")") + 2 :].split()
    state, parent, group, session = fields[0].decode(), *map(int, fields[1:4])
    return Process(pid, int(fields[19]), parent, group, session, state)


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
        process: Our child: the shell, or its supervisor. On Linux it is not reaped while this is in use, so that its id
            stays its own.
        group: The process group of a shell below a supervisor, which itself is not part of the command; else the shell's own.
        has_proc: Whether to look into ``/proc``.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], *, group: int | None = None, has_proc: bool = HAS_PROC
    ) -> None:
        self._process = process
        self._leader = process.pid if group is None else group
        self._supervisor = process.pid if self._leader != process.pid else None
        self._has_proc = has_proc
        self._known: set[Process] = set()
        first = look_at(process.pid) if has_proc else None
        self._since = 0 if first is None else first.started

    def members(self) -> list[int]:
        """Ids of those that are alive. Without ``/proc`` it is the group's alone, for as long as it has members."""
        if not self._has_proc:
            self._process.poll()  # a zombie shell would count as a member
            return [self._leader] if send_to_group(self._leader, 0) else []
        # No process that is older than the command can belong to it.
        seen = {process.pid: process for process in all_processes() if process.started >= self._since}
        # As they are now: a process may have left the group since the last look.
        self._known = {seen[process.pid] for process in self._known if seen.get(process.pid) == process}
        pending = [process for process in seen.values() if self._is_member(process)]
        self._known.update(pending)
        by_parent: dict[int, list[Process]] = {}
        for process in seen.values():
            by_parent.setdefault(process.parent, []).append(process)
        while pending:  # a descendant of a member is one, whatever it did to its session and environment
            for child in by_parent.get(pending.pop().pid, ()):
                if child not in self._known:
                    self._known.add(child)
                    pending.append(child)
        return sorted(process.pid for process in self._known if seen[process.pid].is_alive)

    def wrappers(self) -> set[int]:
        """Ids of the wrapper that leads the group, and of the first process in its namespaces, as of the last look."""
        return {self._leader, *(process.pid for process in self._known if process.parent == self._leader)}

    def send(self, number: signal.Signals) -> list[int]:
        """Signal them all and return who was there to be signalled."""
        members = self.members()
        # First the group, in one step, in which no process can escape by forking.
        send_to_group(self._leader, number)
        for process in self._known:
            if process.group != self._leader:
                send_signal(process, number)
        return members

    def _is_member(self, process: Process) -> bool:
        if process.pid == self._supervisor:
            return False
        if process in self._known or self._leader in (process.pid, process.group, process.session):
            return True
        return process.parent == self._supervisor  # it lost its own parent


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
