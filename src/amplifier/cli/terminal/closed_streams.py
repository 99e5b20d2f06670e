"""Standard streams that the parent has closed: Python has None in their place, and their numbers go to the next file opened.

A conversation could then be opened as number 1, and whatever a child process writes would be written into it. So before anything
else is opened the numbers are taken by the null device. Above: `_main`. Below: the system.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["fill_closed_streams"]

_LAST_STANDARD = 2


def fill_closed_streams() -> bool:
    """Put the null device in the place of closed standard streams; returns whether standard output was open."""
    had_output = sys.stdout is not None
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return True
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(descriptor, True)  # child processes need all three as well
    os.close(descriptor)
    # Never closed: they live as long as the process, as the ones they stand for.
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    return had_output
