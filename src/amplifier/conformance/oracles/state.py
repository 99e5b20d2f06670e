"""What the objects of a mounted module refer to, as far as it can change: for finding state that sessions share and no answer shows."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from amplifier.conformance.target.mounted import MountedModule
from amplifier.conformance.target.resolver_samples import resolver_of

_CHANGEABLE = (dict, list, set, deque, bytearray)
_PLAIN = (str, bytes, int, float, type(None))
_DEEPEST = 12

State = dict[str, Any]
"""From the place of an object to the object."""


def state_of(mounted: MountedModule) -> State:
    """The containers that the module's objects refer to in one session, and its classes and Python modules with theirs."""
    target = mounted.loaded.target
    top = target.import_name if target.origin == "installed" else target.import_name.partition(".")[0]
    found: State = {}
    seen: dict[int, Any] = {}

    def visit(value: Any, place: str, depth: int = 0) -> None:
        if id(value) in seen or depth > _DEEPEST:
            return
        seen[id(value)] = value
        if isinstance(value, _CHANGEABLE):
            found[place] = value
        for name, part in _parts(value, top):
            visit(part, f"{place}.{name}".strip("."), depth + 1)

    for name, module in list(sys.modules.items()):
        if _is_below(name, top):
            classes = {each.__qualname__: each for each in vars(module).values() if isinstance(each, type)}
            own = {place: each for place, each in classes.items() if _is_below(each.__module__, top)}
            found |= {name: module, **own}
            for place, holder in {name: module, **own}.items():
                for key, value in list(vars(holder).items()):
                    if isinstance(value, _CHANGEABLE) and not key.startswith("__"):
                        visit(value, f"{place}.{key}")
    for root in (*mounted.instances.values(), *(each.handler for each in mounted.registrations), resolver_of(mounted)):
        visit(root, "")
    return found


def _is_below(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


def _parts(value: Any, top: str) -> Iterator[tuple[str, Any]]:
    """What a value refers to, by name: members, attributes of the module's own objects, what functions enclose."""
    if isinstance(value, dict):
        yield from ((str(key), each) for key, each in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((str(number), each) for number, each in enumerate(list(value)))
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in cells if cell != type(cell)())
    elif _is_below(type(value).__module__, top):
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        names = [name for name in (*getattr(value, "__dict__", ()), *slots) if hasattr(value, name)]
        yield from ((name, getattr(value, name)) for name in names)


def contents(state: State) -> dict[str, list[str]]:
    """The contents of each, to compare with later: plain values as Python writes them, others by identity."""
    return {place: sorted(_contents(value)) for place, value in state.items()}


def _contents(value: Any) -> Iterator[str]:
    held = value if isinstance(value, _CHANGEABLE) else vars(value)
    if isinstance(held, (list, set, deque, bytearray)):
        return map(_written, list(held))
    return (f"{_written(key)}: {_written(each)}" for key, each in list(held.items()) if not str(key).startswith("__"))


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"{type(value).__name__} {id(value)}"
