"""How to mend what a clause found: one piece of advice for each, for the reports and the reference pages."""

from __future__ import annotations

_HINTS: dict[str, str] = {}


def hint_for(clause_id: str) -> str:
    """The advice for a clause; empty if there is none."""
    return _HINTS.get(clause_id, "")
