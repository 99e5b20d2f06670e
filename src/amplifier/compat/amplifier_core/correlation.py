"""One id for all events of one call of a language model."""

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

# The id is kept per task, so that calls that run at the same time have different ids. The id of an
# event always takes precedence. Otherwise a call gets an id when its request is announced and loses
# it with the event that ends the call. An event outside a call gets none, because no id is better
# than a wrong one.
_open_call: ContextVar[str | None] = ContextVar("amplifier_core_llm_call", default=None)


def new_request_id() -> str:
    """Return a new unique id."""
    return str(uuid.uuid4())


def current_request_id() -> str | None:
    """Return the id of the running call of this task, if any."""
    return _open_call.get()


def reset_request_id() -> None:
    """Drop the id of the running call of this task."""
    _open_call.set(None)


def resolve_request_id(event: str, explicit: str | None = None) -> str | None:
    """Return the id of an event, and open, continue or end the call to which it belongs.

    Args:
        event: The event that will be emitted.
        explicit: The id in its payload, or None.
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
