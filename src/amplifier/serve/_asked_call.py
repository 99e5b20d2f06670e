"""The tool call that a question for permission is about."""

from __future__ import annotations

from amplifier.contracts import current_call

__all__ = ["asked_call_id"]


def asked_call_id() -> str | None:
    """The id of the outermost tool call that runs here: clients do not know the calls of child sessions inside it."""
    call, found = current_call(), None
    while call is not None:
        found = call.call_id if call.kind == "tool" else found
        call = call.parent
    return found
