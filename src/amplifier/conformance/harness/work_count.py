"""Counts what the module is made to do in this process; limits that are counted are the same on a busy machine.

A call counts 1; a mount and a process that the module starts count as many as calls take about as long.
"""

from __future__ import annotations

from .resources.observers import started_processes

_MOUNT = 10
_PROCESS = 200
_done = [0]


def count_call() -> None:
    """Count a call of the module."""
    _done[0] += 1


def count_mount() -> None:
    """Count a mount of the module."""
    _done[0] += _MOUNT


def work_done() -> int:
    """What the module was made to do so far, in calls."""
    return _done[0] + _PROCESS * started_processes()
