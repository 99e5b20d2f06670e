"""Which processes run, asked of the system and not of the code under test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_PROC = Path("/proc")


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
    listing = subprocess.run(["ps", "-axww", "-o", "stat=,pid=,args="], capture_output=True, text=True, check=True)
    lines = (line.split(maxsplit=1) for line in listing.stdout.splitlines())
    return [line for state, line in lines if text in line and not state.startswith("Z")]


def processor_seconds(session: int) -> float:
    """How long the processes of a session have used the processor, with those of their children that have ended; 0 where it is not known."""
    ticks = 0
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
