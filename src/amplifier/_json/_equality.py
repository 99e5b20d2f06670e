"""Whether two JSON values are the same, where ``==`` is too generous."""

from __future__ import annotations

from typing import Any

from ._walk import LEAVES


def is_same_json(one: Any, other: Any) -> bool:
    """Whether a value and another are the same JSON value: 1 is neither True nor 1.0.

    Subclasses of dict and list count as plain ones, as in a copy by `copy_json`; their own methods are not run. A leaf that is not of
    JSON is the same only as itself: ``__eq__`` of a foreign class may do anything.
    """
    waiting = [(one, other)]
    compared: set[tuple[int, int]] = set()  # one list may be reached by very many routes
    while waiting:
        one, other = waiting.pop()
        if one is other:
            continue
        kind = type(one)
        if kind in LEAVES:
            if kind is not type(other) or one != other:
                return False
            continue
        pairs = _members(one, other)
        if pairs is None:
            return False
        if (id(one), id(other)) not in compared:
            compared.add((id(one), id(other)))
            waiting += pairs
    return True


def _members(one: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """The members of two containers that belong together; None if the two differ, or are no containers of one kind."""
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = dict(dict.items(one)), dict(dict.items(other))
        return [(left[key], right[key]) for key in left] if left.keys() == right.keys() else None
    if isinstance(one, list) and isinstance(other, list):
        items, others = list(list.__iter__(one)), list(list.__iter__(other))
    elif isinstance(one, tuple) and isinstance(other, tuple):
        items, others = list(tuple.__iter__(one)), list(tuple.__iter__(other))
    else:
        return None
    return list(zip(items, others, strict=True)) if len(items) == len(others) else None
