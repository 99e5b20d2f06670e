"""Many copies of one value, for the handlers of an event whose payload is large."""

from __future__ import annotations

from itertools import chain
from typing import Any

from ._walk import CONTAINER, DICTS, LEAVES, LONG, MAX_COPY_DEPTH, MOST_COPIED, copy_json, is_container, size_inside


class _Rows(list[Any]):
    """A long list of dicts, the messages of a conversation; a copy of it has copies of the dicts."""

    def copy(self) -> list[Any]:
        return list(map(dict.copy, self))

    def deep(self) -> list[int]:
        """Where the dicts are that hold containers."""
        if LEAVES.issuperset(map(type, chain.from_iterable(map(dict.values, self)))):
            return []
        return [index for index, row in enumerate(self) if not LEAVES.issuperset(map(type, row.values()))]


class Copies:
    """Copies of a value as it was when the first of them was made, each as `copy_json` makes it.

    The value is walked once. A copy then takes two steps per container, whatever its leaves are: copy it, put it into its
    parent. That is 40 % of what `copy_json` takes, which looks at every leaf; the walk pays from the third copy on.
    """

    __slots__ = ("_careful", "_levels", "_places", "_value")

    def __init__(self) -> None:
        self._value: Any = None
        self._careful: Any = None
        self._levels: list[tuple[list[Any], list[tuple[int, list[int]]]]] = []
        """The containers of each level, and the rows among those of the level before that hold some of them."""
        self._places: tuple[list[int], list[int], list[Any]] = ([], [], [])
        """The number of each container, that of its parent, and its key there."""

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
        made: list[Any] = []
        for containers, rows in self._levels:
            made += [container.copy() for container in containers]
            for number, deep in rows:
                copied = made[number]
                made += [copied[index] for index in deep]
        for number, parent, key in zip(*self._places, strict=True):
            made[parent][key] = made[number]
        return made[0]

    def _walk(self, value: dict[str, Any]) -> bool:
        """Copy a value level by level and note where every container belongs; False if it holds what needs more care."""
        inside: list[Any] = [value.copy()]
        levels: list[tuple[list[Any], list[tuple[int, list[int]]]]] = [(inside, [])]
        numbers: list[int] = []
        parents: list[int] = []
        keys: list[Any] = []
        first, depth, seen = 0, 0, 0
        while inside:
            depth += 1
            seen += CONTAINER * len(inside)
            if depth > MAX_COPY_DEPTH or seen > MOST_COPIED:
                return False
            containers: list[Any] = []
            rows: list[tuple[int, list[int]]] = []
            deep_rows: list[Any] = []
            for parent, container in enumerate(inside, first):
                if type(container) is _Rows:
                    rows.append((parent, deep := container.deep()))
                    deep_rows += [container[index] for index in deep]
                    continue
                for key, child in container.items() if type(container) is dict else enumerate(container):
                    kind = type(child)
                    if kind in LEAVES:
                        continue
                    if kind is dict:
                        copied: Any = child.copy()
                    elif issubclass(kind, list):
                        copied = list.copy(child)  # a subclass is read without running its own methods
                        if len(copied) > LONG:
                            kinds = set(map(type, copied))
                            if (seen := seen + size_inside(copied, kinds)) > MOST_COPIED:
                                return False
                            if kinds == DICTS:
                                copied = _Rows(map(dict.copy, copied))
                    elif is_container(child):
                        return False
                    else:
                        continue
                    container[key] = copied
                    containers.append(copied)
                    parents.append(parent)
                    keys.append(key)
            first += len(inside)
            numbers += range(first, first + len(containers))
            levels.append((containers, rows))
            inside = containers + deep_rows
        self._levels, self._places = levels, (numbers, parents, keys)
        return True


def copies_for(value: Any) -> Copies | None:
    """A maker of copies for a large value: a dict that holds a list or dict of more than 16 items.

    None for another value, which `copy_json` copies faster.
    """
    if type(value) is not dict or LEAVES.issuperset(map(type, value.values())):
        return None
    for child in value.values():
        kind = type(child)
        if (kind is dict and len(child) > LONG) or (issubclass(kind, list) and list.__len__(child) > LONG):
            return Copies()
    return None
