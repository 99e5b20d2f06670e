"""Draw valid inputs from a schema and a seed, in which everything varies at every depth."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amplifier.conformance.inputs.json_schema import acceptor, merged, resolved
from amplifier.conformance.inputs.values import (
    Input,
    Values,
    distinct,
    is_harmless,
    kinds_of,
    properties_of,
    required_of,
)

# The listed inputs of `values` change one property of an otherwise equal input. Only the drawn ones
# show faults with two different items of a list, or with a missing optional key inside an object.
# Values of the same key are often equal, so that one call finds the data that another one left.

_MAX_DEPTH = 6
_MAX_ITEMS = 20
_MAX_NUMBER = 1_000_000
"""Largest number in use, because code that counts to a bound must come to an end."""
_LENGTHS = (0, 1, 2, 2, 3, 4)
_TEXTS = ("text", "other", "it's", 'say "so"', "100%", "a_b", "ünï e\u0301")
_MAX_WORDS = 6
_PATH_MARKS = ("/", "~", "..", "\\")
"""Parts of a text that might be a path on this machine."""
_REPEATED = 0.5
"""Probability that a value is the first value of its key."""
_INCLUDED = 0.6
"""Probability that an object has an optional key."""
_ATTEMPTS = 4


class VariedInputs:
    """Draws inputs of one schema.

    Args:
        schema: The schema of a tool.
        file_name: The name of an existing file, for properties that look like paths.
        words: Words of the tool's source, for properties that accept any text.
        texts: Other texts for such properties, such as the ones that the tool looks for.
        seed: Equal seeds draw equal inputs.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        file_name: str,
        *,
        words: Sequence[str] = (),
        texts: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self._schema = schema
        self._values = Values(schema, file_name)
        self._texts = [word for word in words if is_harmless(word)][:_MAX_WORDS]
        self._texts += [text for text in texts if not any(mark in text for mark in _PATH_MARKS)]
        self._random = random.Random(seed)
        self._first: dict[str, Any] = {}

    def draw(self, count: int) -> list[Input]:
        """Draw `count` inputs and return the valid ones, each once."""
        accepts = acceptor(self._schema, check_formats=False)
        top = {**resolved(self._schema, self._schema), "type": "object"}
        drawn = [self._value(top, "", 0) for _ in range(count)]
        return distinct(given for given in drawn if accepts is None or accepts(given))

    def _value(self, schema: Any, name: str, depth: int) -> Any:
        part = resolved(schema, self._schema)
        if not part or depth > _MAX_DEPTH:
            return "text"
        if "const" in part:
            return part["const"]
        if isinstance(part.get("enum"), list) and part["enum"]:
            return self._random.choice(part["enum"])
        for key in ("anyOf", "oneOf"):
            branches = part.get(key)
            if isinstance(branches, list) and branches:
                chosen = resolved(self._random.choice(branches), self._schema)
                rest = {name: value for name, value in part.items() if name != key}
                return self._value(merged(chosen, rest), name, depth + 1)
        kind = self._random.choice(kinds_of(part))
        if kind == "object":
            return self._object(part, depth)
        if kind == "array":
            return self._array(part, name, depth)
        return self._leaf(part, kind, name)

    def _object(self, part: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = required_of(part)
        drawn = {
            key: self._value(inner, key, depth + 1)
            for key, inner in properties_of(part).items()
            if key in required or self._random.random() < _INCLUDED
        }
        for key in required:
            drawn.setdefault(key, "text")
        return drawn

    def _array(self, part: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        prefix = part.get("prefixItems")
        if isinstance(prefix, list):
            return [self._value(item, name, depth + 1) for item in prefix]
        min_items, max_items = part.get("minItems", 0), part.get("maxItems", _MAX_ITEMS)
        length = min(max(self._random.choice(_LENGTHS), min_items), max_items, _MAX_ITEMS)
        items: list[Any] = []
        item: Any = None
        for _ in range(length):
            # Items differ as far as the schema allows different ones.
            for _ in range(_ATTEMPTS):
                item = self._value(part.get("items", {}), name, depth + 1)
                if item not in items:
                    break
            items.append(item)
        return items

    def _leaf(self, part: Mapping[str, Any], kind: str, name: str) -> Any:
        pool = self._pool({**part, "type": kind}, kind, name)
        first = self._first.setdefault(f"{kind} {name}", pool[0])
        is_repeated = self._random.random() < _REPEATED and first in pool
        return first if is_repeated else self._random.choice(pool)

    def _pool(self, part: dict[str, Any], kind: str, name: str) -> list[Any]:
        """Return the values to choose from, the most ordinary one first."""
        if kind == "boolean":
            return [True, False]
        if kind == "null":
            return [None]
        examples = part.get("examples")
        pool = list(examples) if isinstance(examples, list) else []
        pool += [part["default"]] if "default" in part else []
        plain = self._values.plain({"type": kind} if pool and kind == "null" else part, name)
        pool.append(plain)
        if kind in ("integer", "number"):
            return [*pool, *_numbers(part, kind)]
        if not {"pattern", "format"} & part.keys() and plain == "text":
            low, high = part.get("minLength", 0), part.get("maxLength", _MAX_NUMBER)
            pool += [text for text in (*_TEXTS, *self._texts) if low <= len(text) <= high]
        return pool


Place = tuple[str | int, ...]
"""The keys that lead to a value, with 0 for the first item of a list."""


def choices_at(schema: Mapping[str, Any]) -> Iterator[tuple[Place, list[Any]]]:
    """Yield the values of each property or item, at any depth, if the schema names all of them."""
    yield from _choices(resolved(schema, schema), schema, ())


def _choices(
    part: Mapping[str, Any], schema: Mapping[str, Any], place: Place
) -> Iterator[tuple[Place, list[Any]]]:
    listed = part.get("enum")
    if place and isinstance(listed, list):
        yield place, listed
    if len(place) >= _MAX_DEPTH:
        return
    for key, inner in properties_of(part).items():
        yield from _choices(resolved(inner, schema), schema, (*place, key))
    if "items" in part:
        yield from _choices(resolved(part["items"], schema), schema, (*place, 0))


def objects_at(schema: Mapping[str, Any]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the schema of each object inside the input, at any depth, with its place."""
    yield from _objects(resolved(schema, schema), schema, ())


def _objects(
    part: Mapping[str, Any], schema: Mapping[str, Any], place: Place
) -> Iterator[tuple[Place, dict[str, Any]]]:
    if place and properties_of(part):
        yield place, dict(part)
    for key in ("anyOf", "oneOf"):
        branches = part.get(key)
        for branch in branches if place and isinstance(branches, list) else ():
            rest = {name: value for name, value in part.items() if name != key}
            whole = merged(resolved(branch, schema), rest)
            if properties_of(whole):
                yield place, whole
    if len(place) >= _MAX_DEPTH:
        return
    for key, inner in properties_of(part).items():
        yield from _objects(resolved(inner, schema), schema, (*place, key))
    if "items" in part:
        yield from _objects(resolved(part["items"], schema), schema, (*place, 0))


def shown_place(place: Place) -> str:
    """Return a place of a schema for a report."""
    return repr("/".join("each" if key == 0 else str(key) for key in place))


def places_of(given: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of the texts in a value and of its lists that have items.

    Only the first item of a list is searched.
    """
    if isinstance(given, str):
        yield place
    elif isinstance(given, dict) and len(place) < _MAX_DEPTH:
        for key, member in given.items():
            yield from places_of(member, (*place, key))
    elif isinstance(given, list) and given:
        yield place
        yield from places_of(given[0], (*place, 0))


def value_at(given: Any, place: Place) -> Any:
    """Return the value at a place of an input, or `NOTHING` if the input has no such place."""
    for key in place:
        try:
            given = given[key]
        except (KeyError, IndexError, TypeError):
            return NOTHING
    return given


NOTHING = object()
"""Stands for a missing value."""


def with_value(given: Any, place: Place, value: Any) -> Any:
    """Return a copy of an input with another value at a place that it has."""
    if not place:
        return value
    changed = dict(given) if isinstance(given, dict) else list(given)
    inner = with_value(given[place[0]], place[1:], value)
    changed[place[0]] = inner  # type: ignore[index]  # as the input has it
    return changed


def _numbers(part: Mapping[str, Any], kind: str) -> list[Any]:
    low, high = part.get("minimum", -_MAX_NUMBER), part.get("maximum", _MAX_NUMBER)
    bounds = [bound for bound in (low, high) if abs(bound) < _MAX_NUMBER]
    others = (0, 1, 2, 7, 1000) if kind == "integer" else (0, 1, 2, 2.0, 7.25, 1000)
    return [*bounds, *(other for other in others if low <= other <= high)]
