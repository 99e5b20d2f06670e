"""Many copies of one value, for the handlers of an event whose payload is large."""

from __future__ import annotations

from itertools import islice
from typing import Any

from ._walk import LEAVES, MANY_CONTAINERS, MAX_COPY_DEPTH, copy_json, is_container

_LARGE = 16


class Copies:
    """Copies of a value as it was when the first of them was made, each as `copy_json` makes it.

    The value is walked once. A copy then takes two steps per container, whatever its leaves are: copy it, put it into its
    parent. That is 40 % of what `copy_json` takes, which looks at every leaf; the walk pays from the third copy on.
    """

    __slots__ = ("_careful", "_containers", "_keys", "_parents", "_value")

    def __init__(self) -> None:
        self._value: Any = None
        self._careful: Any = None
        self._containers: list[Any] = []
        self._parents: list[int] = []
        self._keys: list[Any] = []

    def make(self, value: dict[str, Any]) -> Any:
        """One more copy of the value of the last call, as it was then, or the first copy of another value.

        Raises:
            ModelError: As `copy_json`.
        """
        if value is not self._value:
            self._careful = None if self._walk(value) else copy_json(value)
            self._value = value
        if self._careful is not None:
            return copy_json(self._careful)
        made = [container.copy() for container in self._containers]
        for parent, key, child in zip(self._parents, self._keys, islice(made, 1, None), strict=True):
            made[parent][key] = child
        return made[0]

    def _walk(self, value: dict[str, Any]) -> bool:
        """Copy a value level by level and note where every container belongs; False if it holds what needs more care."""
        containers: list[Any] = [value.copy()]
        parents: list[int] = []
        keys: list[Any] = []
        begin = depth = 0
        while begin < len(containers):
            end = len(containers)
            depth += 1
            if depth > MAX_COPY_DEPTH or end > MANY_CONTAINERS:
                return False
            for index in range(begin, end):
                container = containers[index]
                for key, child in container.items() if type(container) is dict else enumerate(container):
                    kind = type(child)
                    if kind in LEAVES:
                        continue
                    if kind is dict:
                        copied: Any = child.copy()
                    elif issubclass(kind, list):
                        copied = list.copy(child)  # a subclass is read without running its own methods
                    elif is_container(child):
                        return False
                    else:
                        continue
                    container[key] = copied
                    containers.append(copied)
                    parents.append(index)
                    keys.append(key)
            begin = end
        self._containers, self._parents, self._keys = containers, parents, keys
        return True


def copies_for(value: Any) -> Copies | None:
    """A maker of copies for a large value: a dict that holds a list or dict of more than 16 items.

    None for another value, which `copy_json` copies faster.
    """
    if type(value) is not dict or LEAVES.issuperset(map(type, value.values())):
        return None
    for child in value.values():
        kind = type(child)
        if (kind is dict and len(child) > _LARGE) or (issubclass(kind, list) and list.__len__(child) > _LARGE):
            return Copies()
    return None
