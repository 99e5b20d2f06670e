"""Replaces standard streams that the parent process has closed.

Python has None in their place, and the next file that is opened gets their descriptor. A conversation could be opened as
descriptor 1, and child processes would write their output into it. So the null device takes these descriptors first.
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
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the process
    return had_output
