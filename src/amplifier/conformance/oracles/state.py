"""What the objects of a mounted module refer to, as far as it can change: for finding state that sessions share and no answer shows."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from amplifier.conformance.target.mounted import MountedModule
from amplifier.conformance.target.resolver_samples import resolver_of

_CHANGEABLE = (dict, list, set, deque, bytearray)
_PLAIN = (str, bytes, int, float, type(None))
_DEEPEST = 12

State = dict[str, Any]
"""From the place of an object to the object."""


def state_of(mounted: MountedModule) -> State:
    """The containers that the module's objects refer to in one session, the classes of these objects, and its Python modules."""
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
            if isinstance(part, type):
                found.setdefault(part.__qualname__, part)
            visit(part, f"{place}.{name}" if place else name, depth + 1)

    roots = [*mounted.instances.values(), *(each.handler for each in mounted.registrations), resolver_of(mounted)]
    for root in roots:
        visit(root, "")
    for name, module in list(sys.modules.items()):
        if (name == top or name.startswith(f"{top}.")) and isinstance(module, ModuleType):
            found[name] = module
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and _is_of(value, top):
                    found[value.__qualname__] = value
                    visit(value, value.__qualname__)
                elif isinstance(value, _CHANGEABLE) and not key.startswith("__"):
                    visit(value, f"{name}.{key}")
    return found


def _parts(value: Any, top: str) -> Iterator[tuple[str, Any]]:
    """What a value refers to, by name: members, attributes of the module's own objects and classes, what functions enclose."""
    if isinstance(value, dict):
        yield from ((str(key), each) for key, each in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((str(number), each) for number, each in enumerate(list(value)))
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, partial):
        yield from (("", each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != type(cell)():
                yield name, cell.cell_contents
    elif isinstance(value, type):
        yield from ((name, each) for name, each in vars(value).items() if isinstance(each, _CHANGEABLE))
    elif _is_of(type(value), top):
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        names = [*getattr(value, "__dict__", ()), *(each for each in slots if isinstance(each, str))]
        yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))
        yield from (("", each) for each in type(value).__mro__ if _is_of(each, top))


def _is_of(kind: type, top: str) -> bool:
    return kind.__module__ == top or kind.__module__.startswith(f"{top}.")


def contents(state: State) -> dict[str, list[str]]:
    """The contents of each, to compare with later: plain values as Python writes them, others by identity."""
    return {place: sorted(_contents(value)) for place, value in state.items()}


def _contents(value: Any) -> Iterator[str]:
    if isinstance(value, (ModuleType, type)):
        pairs = vars(value).items()
        yield from (f"{key}: {_written(each)}" for key, each in list(pairs) if not str(key).startswith("__"))
    elif isinstance(value, dict):
        yield from (f"{_written(key)}: {_written(each)}" for key, each in list(value.items()))
    else:
        yield from map(_written, list(value))


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"{type(value).__name__} {id(value)}"
