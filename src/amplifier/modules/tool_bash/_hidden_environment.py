"""Keeps commands of the same user from reading the memory and the environment of this process, where API keys are.

A process that is not "dumpable" belongs to root in ``/proc``. It cannot be attached to by a debugger of the same user, and
writes no core file. The state is one for the process: the last session that needs it gives it back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from .._shared.supervisor import PR_GET_DUMPABLE, PR_SET_DUMPABLE, prctl

_lock = threading.Lock()
_users = 0
_before = 1


def hide_environment() -> Callable[[], None]:
    """Make this process not dumpable; returns the function that undoes it, which may be called twice. Linux only."""
    global _users, _before  # noqa: PLW0603 — the state belongs to the process, not to a session
    is_used = sys.platform.startswith("linux")
    if is_used:
        with _lock:
            if _users == 0:
                _before = prctl(PR_GET_DUMPABLE)
                prctl(PR_SET_DUMPABLE, 0)
            _users += 1

    def undo() -> None:
        nonlocal is_used
        global _users  # noqa: PLW0603 — as above
        with _lock:
            if is_used:
                is_used = False
                _users -= 1
                if _users == 0 and _before == 1:
                    prctl(PR_SET_DUMPABLE, 1)

    return undo
