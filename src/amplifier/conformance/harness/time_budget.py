"""Time limits of checks: a slow module gets fewer calls, the most revealing of which come first."""

from __future__ import annotations

import time

from .cpu_clock import unstalled_time
from .mounted_module import CheckContext

_QUICK_POINTS = 100
_THOROUGH = 8.0
_WAITING = 1.3


class Budget:
    """The time that a check may use.

    CPU time counts in full and waiting for less. Waiting for a CPU does not count, so that a busy machine makes as many
    calls as an idle one.

    Args:
        ctx: Its profile decides how much there is.
        seconds: The time in the quick profile.
    """

    def __init__(self, ctx: CheckContext, seconds: float) -> None:
        granted = seconds * (1.0 if ctx.points < _QUICK_POINTS else _THOROUGH)
        self._busy_until = time.process_time() + granted
        self._until = unstalled_time() + granted * _WAITING

    def is_spent(self) -> bool:
        """Whether the time is used up."""
        return time.process_time() > self._busy_until or unstalled_time() > self._until


_SHARED: dict[tuple[int, str], Budget] = {}


def shared_budget(ctx: CheckContext, name: str, seconds: float) -> Budget:
    """One budget for all drawn cases of a check; the time between them counts as well."""
    key = (id(ctx.loaded), f"{name}:{ctx.backend}")
    if key not in _SHARED:
        _SHARED[key] = Budget(ctx, seconds)
    return _SHARED[key]
