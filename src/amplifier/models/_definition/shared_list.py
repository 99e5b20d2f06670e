"""A list whose members belong to others as well, until it is read: then it copies them.

A conversation is shown to a model again and again, and most of it has been shown before. Its messages are built once and shared between
requests. A request must still be its reader's own, who may change what is in it; so the members are copied when the list is
first read, and not at all if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar, final

import attrs

from amplifier._json import copy_json

from .base import Model

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=Model)

_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


@final
class SharedList(list[T]):
    """A list that copies its members when the first of them is read.

    Its length, a comparison and its repr do not count as reading. C code that reads the memory of a list, as orjson
    does, finds the shared members, which are equal to the copies.

    Args:
        members: They must never change.
        copy: Returns a copy of one member.
    """

    __slots__ = ("_copy",)

    def __init__(self, members: Iterable[T], copy: Callable[[T], T]) -> None:
        super().__init__(members)
        self._copy: Callable[[T], T] | None = copy

    @property
    def is_shared(self) -> bool:
        """Whether the members have not been copied yet."""
        return self._copy is not None

    def share(self) -> SharedList[T] | list[T]:
        """Another list of the same members: shared as long as these are."""
        return list.copy(self) if self._copy is None else SharedList(shared_members(self), self._copy)

    def own(self) -> None:
        """Copy the members; nothing happens if they were copied before."""
        if self._copy is not None:
            list.__setitem__(self, slice(None), [self._copy(member) for member in list.__iter__(self)])
            self._copy = None

    def __iter__(self) -> Iterator[T]:
        self.own()
        return list.__iter__(self)

    def __radd__(self, other: list[T]) -> list[T]:
        return [*other, *self]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, ([*self],)


def _owning(name: str) -> Callable[..., Any]:
    """A method of `list` that copies the members first, of lists among its arguments, too."""
    method = getattr(list, name)

    def owning(self: SharedList[Any], *args: Any, **keywords: Any) -> Any:
        self.own()
        for value in args:
            if type(value) is SharedList:
                value.own()
        return method(self, *args, **keywords)

    owning.__name__ = name
    return owning


# Every method that returns members, hands them to others or puts new ones beside them.
for _name in (
    *("__getitem__", "__setitem__", "__delitem__", "__reversed__", "__add__", "__iadd__", "__mul__", "__rmul__"),
    *("__imul__", "append", "extend", "insert", "pop", "remove", "clear", "copy", "sort", "reverse"),
):
    setattr(SharedList, _name, _owning(_name))


def shared_members(values: Collection[T]) -> Collection[T]:
    """The members of a list, for a reader that changes nothing: of a `SharedList` they are not copied."""
    return list.copy(values) if type(values) is SharedList else values


def detached(model: ModelT) -> ModelT:
    """A copy of a model that shares no model, dict or list with it."""
    cls = type(model)
    copied = cls.__new__(cls)
    for name in _attribute_names(cls):
        value = getattr(model, name)
        object.__setattr__(copied, name, value if type(value) in _LEAVES else _detached_value(value))
    return copied


def _detached_value(value: Any) -> Any:
    if isinstance(value, Model):
        return detached(value)
    if type(value) is list:
        return [member if type(member) in _LEAVES else _detached_value(member) for member in value]
    return copy_json(value)


_NAMES: dict[type[Model], tuple[str, ...]] = {}


def _attribute_names(cls: type[Model]) -> tuple[str, ...]:
    names = _NAMES.get(cls)
    if names is None:
        names = _NAMES[cls] = tuple(attribute.name for attribute in attrs.fields(cls))
    return names
