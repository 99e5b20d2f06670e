"""Which processes run, asked of the system and not of the code under test."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def is_alive(pid: int) -> bool:
    """Whether there is a process of this id; one that no one has waited for still counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def running_processes(text: str) -> list[str]:
    """Id and command line of each process whose command line holds a text; not of those that have ended."""
    if not (_PROC / "self").exists():
        return _asked_of_ps(text)
    found = []
    for folder in _PROC.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # gone meanwhile
            continue
        if text in (line := " ".join(words)):  # empty when it has ended and nobody has asked how
            found.append(f"{folder.name} {line}")
    return found


def _asked_of_ps(text: str) -> list[str]:
    listing = subprocess.run(
        ["ps", "-axww", "-o", "stat=,pid=,args="], capture_output=True, text=True, check=True
    )
    lines = (line.split(maxsplit=1) for line in listing.stdout.splitlines())
    return [line for state, line in lines if text in line and not state.startswith("Z")]


def processor_times(leader: int) -> dict[str, tuple[int, int]]:
    """Nanoseconds that each thread of a process and of its descendants has run, and has waited for a processor; empty where it is not known."""
    parents = {}
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            parents[folder.name] = (
                (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            )
    family = {str(leader)}
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    found = {}
    for process in family:
        for thread in _PROC.glob(f"{process}/task/*/schedstat"):
            with suppress(OSError):
                ran, waited, _ = map(int, thread.read_text().split())
                found[str(thread)] = ran, waited
    return found
