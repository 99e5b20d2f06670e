"""Many copies of one value, for the handlers of an event whose payload is large."""

from __future__ import annotations

from itertools import islice
from typing import Any

from ._walk import LEAVES, MANY_CONTAINERS, MAX_COPY_DEPTH, copy_json, is_container

_LARGE = 16


class Copies:
    """Copies of a value as it was when this object was made, each as `copy_json` makes it.

    The value is walked once. A copy then costs two steps per container, whatever its leaves are: copy it, put it into its
    parent. That is 40 % of what `copy_json` takes, which looks at every leaf; the walk pays from the fourth copy on.
    """

    __slots__ = ("_containers", "_keys", "_other", "_parents")

    def __init__(self, value: dict[str, Any]) -> None:
        self._containers: list[Any] = [value.copy()]
        self._parents: list[int] = []
        self._keys: list[Any] = []
        self._other: Any = None
        if not self._walk():
            self._other = copy_json(value)

    def make(self) -> Any:
        """One more copy."""
        if self._other is not None:
            return copy_json(self._other)
        made = [container.copy() for container in self._containers]
        for parent, key, child in zip(self._parents, self._keys, islice(made, 1, None), strict=True):
            made[parent][key] = child
        return made[0]

    def _walk(self) -> bool:
        """Copy the value level by level and note where every container belongs; False if it holds what needs more care."""
        containers, parents, keys = self._containers, self._parents, self._keys
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
                    if kind is dict or kind is list:
                        container[key] = copied = child.copy()
                        containers.append(copied)
                        parents.append(index)
                        keys.append(key)
                    elif kind not in LEAVES and is_container(child):
                        return False
            begin = end
        return True


def copies_of(value: Any) -> Copies | None:
    """A maker of copies for a large value: one with a list or dict of more than 16 items in its first two levels.

    None for a small value, which `copy_json` copies faster.
    """
    if type(value) is not dict:
        return None
    for child in value.values():
        if type(child) is list or type(child) is dict:
            if len(child) > _LARGE:
                return Copies(value)
            for inner in child.values() if type(child) is dict else child:
                if (type(inner) is list or type(inner) is dict) and len(inner) > _LARGE:
                    return Copies(value)
    return None
