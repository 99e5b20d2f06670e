"""Which events have handlers: what no handler receives, a loop does not emit; some of it is recorded for ``session.last_turn``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier.contracts import Hooks

IsHeard = Callable[..., bool]
"""``is_heard(event)``, ``is_heard(event, field)``: whether some handler receives the event, or that field of its payload."""


def knows_handlers(hooks: Hooks) -> bool:
    """Whether it is a `HookRegistry`, or passes the question on to one."""
    return hasattr(hooks, "has_handlers")


def heard_by(hooks: Hooks) -> IsHeard:
    """The question for one registry; one of third parties is taken to hear everything."""
    return getattr(hooks, "has_handlers", _everything)


def recorder_of(hooks: Hooks) -> Callable[[str, dict[str, Any]], None]:
    """What takes the events of a turn that have no handlers; ``record(event, data)`` costs next to nothing."""
    return getattr(hooks, "record", _forget)


def _forget(event: str, data: dict[str, Any]) -> None:
    pass


def _everything(event: str, field: str | None = None) -> bool:
    return True
