"""A clock that a busy machine does not make faster: time in which nobody let us run does not pass.

Linux tells how long a thread was ready to run and had no processor. Elsewhere it is an ordinary clock. Above stand the budgets,
the drawing of cases and the watch over the loop; below stands nothing of ours.
"""

from __future__ import annotations

import time
from pathlib import Path
from threading import get_native_id

_THREADS = Path("/proc/self/task")
_MOST = 10.0


def unstalled_time() -> float:
    """Seconds on a clock that stands still while the calling thread waits for a processor."""
    return time.monotonic() - cpu_wait(get_native_id())


def cpu_wait(thread: int) -> float:
    """Seconds that a thread, given by its native id, has waited for a processor so far."""
    try:
        return int((_THREADS / str(thread) / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def slowdown() -> float:
    """How many times longer than on an idle machine things have taken so far; by this much deadlines are put off."""
    passed = time.monotonic() - _STARTED
    worked = passed - (cpu_wait(get_native_id()) - _WAITED)
    return min(max(passed / max(worked, 0.01), 1.0), _MOST)


def process_cpu_wait() -> float:
    """As `cpu_wait`, for all threads of the process together."""
    try:
        return sum(cpu_wait(int(each.name)) for each in _THREADS.iterdir())
    except OSError:
        return 0.0


_STARTED, _WAITED = time.monotonic(), cpu_wait(get_native_id())
