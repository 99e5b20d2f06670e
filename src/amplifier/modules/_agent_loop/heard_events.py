"""Which events have handlers: what no handler receives, a loop neither builds nor emits."""

from __future__ import annotations

from collections.abc import Callable

from amplifier.contracts import Hooks

IsHeard = Callable[..., bool]
"""``is_heard(event)``, ``is_heard(event, field)``: whether some handler receives the event, or that field of its payload."""


def knows_handlers(hooks: Hooks) -> bool:
    """Whether it is a `HookRegistry`, or passes the question on to one."""
    return hasattr(hooks, "has_handlers")


def heard_by(hooks: Hooks) -> IsHeard:
    """The question for one registry; one of third parties is taken to hear everything."""
    return getattr(hooks, "has_handlers", _everything)


def _everything(event: str, field: str | None = None) -> bool:
    return True
