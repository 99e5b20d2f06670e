"""Paths of properties in inputs of a tool, and inputs changed at them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import attrs

from amplifier.conformance.inputs.json_schema import resolved
from amplifier.conformance.inputs.schema_values import properties_of, required_of

Input = dict[str, Any]

NOTHING: Any = object()
"""In place of a value: remove the property."""


@attrs.frozen
class PropertyPath:
    """The path of a property: ``("items", "[]", "name")`` is the name in each of the items."""

    path: tuple[str, ...]
    schema: Any
    is_required: bool

    def __str__(self) -> str:
        return repr(".".join(each for each in self.path if each != "[]"))

    def holders(self, given: Any) -> list[dict[str, Any]]:
        """The objects that have the property, or could have it."""
        found = [given]
        for part in self.path[:-1]:
            if part == "[]":
                found = [item for value in found if isinstance(value, list) for item in value]
            else:
                found = [value[part] for value in found if isinstance(value, dict) and part in value]
        return [value for value in found if isinstance(value, dict)]

    def is_in(self, given: Any) -> bool:
        """Whether an input has a value at this path."""
        return any(self.path[-1] in holder for holder in self.holders(given))

    def is_lacking(self, given: Any) -> bool:
        """Whether an input has an object that could have the property, and none that has it."""
        return bool(self.holders(given)) and not self.is_in(given)

    def added(self, given: Input, name: str, value: Any) -> Input:
        """The input with one more key in every object that could have the property."""
        copied = copy.deepcopy(given)
        for holder in self.holders(copied):
            holder[name] = value
        return copied

    def changed(self, given: Input, value: Any, name: str | None = None) -> Input:
        """The input with another value here, under another name if one is given."""
        copied = copy.deepcopy(given)
        for holder in self.holders(copied):
            if holder.pop(self.path[-1], NOTHING) is not NOTHING and value is not NOTHING:
                holder[name or self.path[-1]] = value
        return copied

    def value_in(self, given: Input) -> Any:
        """The value of an input at this path."""
        return next(holder[self.path[-1]] for holder in self.holders(given) if self.path[-1] in holder)


def property_paths(top: dict[str, Any], root: Any, depth: int = 0) -> Iterator[PropertyPath]:
    """The paths of all properties that a schema names, those of objects and of lists of objects inside it too."""
    required = required_of(top)
    for name, part in properties_of(top).items():
        yield PropertyPath((name,), part, name in required)
        schema = resolved(part, root)
        inner = resolved(schema.get("items"), root)
        for steps, found in (((name,), schema), ((name, "[]"), inner)):
            if depth < 2 and "properties" in found:
                for path in property_paths(found, root, depth + 1):
                    yield attrs.evolve(path, path=(*steps, *path.path))
