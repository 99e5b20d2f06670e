"""How long a check may go on asking: a slow module is asked fewer questions, the first of which say the most.

Above stand the checks that list their questions; below stands the profile, as the ctx knows it.
"""

from __future__ import annotations

import time

from .cpu_clock import unstalled_time
from .mounted_module import CheckContext

_QUICK_POINTS = 100
_THOROUGH = 8.0
_WAITING = 1.3


class Budget:
    """Counts the time a check has used.

    Seconds of work count in full and seconds of waiting for less; waiting for a processor does not count at all, so that a busy
    machine asks as many questions as an idle one.

    Args:
        ctx: Its profile decides how much there is.
        seconds: What the quick profile grants.
    """

    def __init__(self, ctx: CheckContext, seconds: float) -> None:
        granted = seconds * (1.0 if ctx.points < _QUICK_POINTS else _THOROUGH)
        self._busy_until = time.process_time() + granted
        self._until = unstalled_time() + granted * _WAITING

    def is_spent(self) -> bool:
        """Whether it is time to come to an end."""
        return time.process_time() > self._busy_until or unstalled_time() > self._until


_SHARED: dict[tuple[int, str], Budget] = {}


def shared_budget(ctx: CheckContext, name: str, seconds: float) -> Budget:
    """The budget of all the cases of a check together; the time between them counts as well."""
    key = (id(ctx.loaded), f"{name}:{ctx.backend}")
    if key not in _SHARED:
        _SHARED[key] = Budget(ctx, seconds)
    return _SHARED[key]
