"""Reduce a case that was listed and not drawn, so that a report shows only the relevant parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from amplifier.conformance.target.calls import Budget

Path = tuple[str | int, ...]
Fails = Callable[[Any], bool]

_KEPT = {"call", "do", "event", "id", "name", "odd", "reason", "role"}
_KEPT |= {"say", "sealed", "think", "tool", "type", "what"}
"""Keys without which the rest of an object would be something else."""
_FIXED = {"at", "backend", "does", "ends", "error", "fails", "how", "huge", "post", "pre"}
_FIXED |= {"request", "stops", "submit", *_KEPT} - {"say", "think", "reason", "sealed", "odd"}
"""Keys of names, or of values that are words of a case."""


class _Enough(Exception):
    """Ends the search from any depth."""


def shrunk(case: Any, fails: Fails, budget: Budget, tries: int) -> Any:
    """Return the smallest case found that still fails.

    Lists get shorter, keys are left out, and texts get shorter, until nothing more can go.

    Args:
        case: JSON values, which fail.
        fails: Returns whether a case fails in the same way.
        budget: Ends the search when it is spent. The search itself takes time in a large case.
        tries: Maximum number of cases to try.
    """
    best, before = case, None

    def is_smaller(candidate: Any) -> bool:
        nonlocal best, tries
        if tries <= 0 or budget.is_spent():
            raise _Enough
        tries -= 1
        if not fails(candidate):
            return False
        best = candidate
        return True

    with suppress(_Enough):
        while best != before:
            before = best
            for path in list(_paths(best)):
                _shrink_at(best, path, is_smaller)
    return best


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the place of each list, object and text, the outer ones first."""
    if isinstance(value, dict | list) or (isinstance(value, str) and len(value) > 1):
        yield path
    if isinstance(value, dict):
        for key, member in value.items():
            if key not in _FIXED:
                yield from _paths(member, (*path, key))
    elif isinstance(value, list):
        for index in reversed(range(len(value))):
            yield from _paths(value[index], (*path, index))


def _shrink_at(case: Any, path: Path, fails: Fails) -> None:
    """Try the case with smaller and smaller values at a place."""
    try:
        value: Any = _value_at(case, path)
    except (KeyError, IndexError, TypeError):
        return  # the place was removed with a part around it
    if isinstance(value, dict):
        for key in [key for key in value if key not in _KEPT]:
            smaller = {name: member for name, member in value.items() if name != key}
            if fails(_with_value(case, path, smaller)):
                value = smaller
        return
    if not isinstance(value, list | str):
        return
    rest: Any = value
    # An empty text would be another case, because much depends on whether there is any.
    least = 1 if isinstance(value, str) else 0
    size = max(len(rest) // 2, 1)
    while len(rest) > least:
        at, is_smaller = 0, False
        while at < len(rest):
            part = rest[:at] + rest[at + size :]
            if len(part) >= least and fails(_with_value(case, path, part)):
                rest, is_smaller = part, True
            else:
                at += size
        if size == 1 and not is_smaller:
            break
        size = max(size // 2, 1)


def _value_at(case: Any, path: Path) -> Any:
    for part in path:
        case = case[part]
    return case


def _with_value(case: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(case)
    holder = _value_at(changed, path[:-1])
    holder[path[-1]] = value
    return changed
