"""Makes a case smaller that was listed and not drawn, so that a report shows what matters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]
Fails = Callable[[Any], bool]

_KEPT = {"call", "do", "event", "id", "name", "odd", "reason", "role"}
_KEPT |= {"say", "sealed", "think", "tool", "type", "what"}
"""Keys without which the rest of an object would be something else."""
_FIXED = {"at", "backend", "does", "ends", "error", "fails", "how", "huge", "post", "pre"}
_FIXED |= {"request", "stops", "submit", *_KEPT} - {"say", "think", "reason", "sealed", "odd"}
"""Keys whose values are words of a case, or that name something."""


def shrunk(case: Any, fails: Fails) -> Any:
    """Return the smallest case found that still fails.

    Lists get shorter, keys are left out, and texts get shorter, until nothing more can go.

    Args:
        case: JSON values, which fail.
        fails: Returns whether a case fails in the same way. It may stop the search by returning
            False for every further case.
    """
    best, before = case, None
    while best != before:
        before = best
        for path in list(_paths(best)):
            best = _shrunk_at(best, path, fails)
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


def _shrunk_at(case: Any, path: Path, fails: Fails) -> Any:
    """Return the case with the value at a place as small as it can be."""
    try:
        value: Any = _value_at(case, path)
    except (KeyError, IndexError, TypeError):
        return case  # it went with something around it
    if isinstance(value, dict):
        for key in [key for key in value if key not in _KEPT]:
            smaller = {name: member for name, member in value.items() if name != key}
            candidate = _with_value(case, path, smaller)
            if fails(candidate):
                case, value = candidate, smaller
        return case
    if not isinstance(value, list | str):
        return case
    rest: Any = value
    # An empty text would be another case: much depends on whether there is one.
    least = 1 if isinstance(value, str) else 0
    size = max(len(rest) // 2, 1)
    while len(rest) > least:
        at, is_smaller = 0, False
        while at < len(rest):
            part = rest[:at] + rest[at + size :]
            candidate = _with_value(case, path, part)
            if len(part) >= least and fails(candidate):
                case, rest, is_smaller = candidate, part, True
            else:
                at += size
        if size == 1 and not is_smaller:
            break
        size = max(size // 2, 1)
    return case


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
