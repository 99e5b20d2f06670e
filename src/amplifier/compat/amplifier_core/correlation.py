"""One id for all events of one call of a language model, as published modules import it.

The id is kept per task (a context variable), so that calls that run at the same time keep theirs apart. An id that comes
with an event is always taken over; without one, a call gets an id when its request is announced and loses it with the
event that ends the call. No id is better than a wrong one: an event outside a call gets none.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar

__all__ = [
    "INTERIM_EVENTS",
    "REQUEST_EVENTS",
    "REQUEST_ID_FIELD",
    "TERMINAL_EVENTS",
    "current_request_id",
    "new_request_id",
    "reset_request_id",
    "resolve_request_id",
]

REQUEST_ID_FIELD = "request_id"
REQUEST_EVENTS = frozenset({"llm:request"})
TERMINAL_EVENTS = frozenset({"llm:response", "provider:error"})
INTERIM_EVENTS = frozenset({"provider:retry", "provider:throttle"})

_open_call: ContextVar[str | None] = ContextVar("amplifier_core_llm_call", default=None)


def new_request_id() -> str:
    """A new unique id."""
    return str(uuid.uuid4())


def current_request_id() -> str | None:
    """The id of the call that is under way in this task, if there is one."""
    return _open_call.get()


def reset_request_id() -> None:
    """Forget the call that is under way in this task."""
    _open_call.set(None)


def resolve_request_id(event: str, explicit: str | None = None) -> str | None:
    """The id an event carries, and what it means for the call: opened, continued or ended.

    Args:
        event: The event about to be emitted.
        explicit: The id its payload already has.
    """
    if event in REQUEST_EVENTS:
        opened = explicit or new_request_id()
        _open_call.set(opened)
        return opened
    if event in TERMINAL_EVENTS:
        ended = explicit or current_request_id()
        _open_call.set(None)
        return ended
    if event in INTERIM_EVENTS:
        if explicit:
            _open_call.set(explicit)
        return explicit or current_request_id()
    return None
