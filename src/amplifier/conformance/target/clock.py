"""Time and work of this process, measured so that a busy machine changes nothing.

`unstalled_time` excludes time spent waiting for a CPU: Linux reports how long a thread was ready to run without one. Elsewhere it is an ordinary monotonic
clock. In a worker process `time.monotonic` includes the seconds that virtual time has skipped (see `virtual_clock`), and so does this clock. Checks limit themselves
by calls of the module, not by seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import get_native_id

from amplifier.conformance.target.process import started_processes

_THREADS = Path("/proc/self/task")
_MAX_SLOWDOWN = 10.0
_skipped = [0.0]


def unstalled_time() -> float:
    """Seconds on a clock that stops while the calling thread waits for a CPU."""
    thread = get_native_id()
    waited = cpu_wait(thread)
    while True:
        now, before = time.monotonic(), waited
        waited = cpu_wait(thread)
        if waited == before:  # or the thread waited between the two readings, which then do not belong together
            return now - waited


def skip(seconds: float) -> None:
    """Count seconds that virtual time has skipped."""
    _skipped[0] += seconds


def skipped() -> float:
    """Seconds that virtual time has skipped so far: `unstalled_time` less these is real time."""
    return _skipped[0]


def cpu_wait(thread: int) -> float:
    """Seconds that a thread, given by its native id, has waited for a CPU so far."""
    try:
        # Not by Path and open, which take ten times as long: it is read several times in every call of the module.
        file = os.open(f"{_THREADS}/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 100).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return 0.0


def slowdown() -> float:
    """How many times longer than on an idle machine things have taken so far; deadlines are multiplied by it."""
    passed = time.monotonic() - skipped() - _STARTED
    worked = passed - (cpu_wait(get_native_id()) - _WAITED)
    return min(max(passed / max(worked, 0.01), 1.0), _MAX_SLOWDOWN)


def machine_load() -> float:
    """How many times longer other processes may take than on an idle machine; limits on waiting for them are multiplied by it."""
    try:
        return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), _MAX_SLOWDOWN)
    except OSError:
        return 1.0


def process_cpu_wait() -> float:
    """As `cpu_wait`, for all threads of the process together."""
    try:
        return sum(cpu_wait(int(each.name)) for each in _THREADS.iterdir())
    except OSError:
        return 0.0


_STARTED, _WAITED = time.monotonic(), cpu_wait(get_native_id())


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


class Budget:
    """The work that a check may ask of the module.

    Args:
        calls: How many calls.
    """

    def __init__(self, calls: float) -> None:
        self._until = work_done() + calls

    def is_spent(self) -> bool:
        """Whether it is used up."""
        return work_done() >= self._until
