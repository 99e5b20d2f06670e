"""Limits of checks, in calls of the module instead of seconds: a check does the same on an idle and on a busy machine."""

from __future__ import annotations

from .mounted_module import CheckContext
from .work_count import work_done

_THOROUGH = 8


class Budget:
    """The work that a check may ask of the module.

    Args:
        ctx: Its profile decides how much there is.
        calls: The calls in the quick profile.
    """

    def __init__(self, ctx: CheckContext, calls: float) -> None:
        self._until = work_done() + calls * (_THOROUGH if ctx.is_thorough else 1)

    def is_spent(self) -> bool:
        """Whether it is used up."""
        return work_done() >= self._until
