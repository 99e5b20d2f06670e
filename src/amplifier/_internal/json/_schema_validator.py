"""Validators of JSON Schemas from untrusted sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NoReturn
from urllib.parse import unquote

from amplifier.errors import MissingExtraError

# A schema may come from anyone, such as an MCP server. It never causes a request, because
# references to other documents are refused. The validating package is compiled code that nothing
# can interrupt. So the size, the depth, the patterns and the number of parts are measured and
# limited first.

# Approximate number of characters. Texts and names count with their length, everything else as 8.
LARGEST_SCHEMA = 262_144
# Levels of objects and lists, with references followed.
_MAX_DEPTH = 128
# A part that is referred to counts once for every path to it.
_MAX_PARTS = 200_000
# Sum of `_cost` over all patterns. A pattern of 100 classes takes a tenth of a second, and one of
# 1,000 several seconds.
_MAX_PATTERN_COST = 200_000

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_COUNTED = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_MAX_RECURSIVE_WORK = 100_000


class SchemaRefused(ValueError):
    """A schema is invalid, refers to another document, or exceeds a limit.

    Attributes:
        is_invalid: Whether it is not valid JSON Schema.
    """

    def __init__(self, message: str, *, is_invalid: bool = False) -> None:
        super().__init__(message)
        self.is_invalid = is_invalid


class Validator:
    """Checks values against one schema."""

    __slots__ = ("_parts", "_returns", "_validator")

    def __init__(self, validator: Any, parts: int, returns: int) -> None:
        self._validator = validator
        self._parts = parts
        self._returns = returns

    def is_valid(self, value: Any) -> bool:
        """Return whether the value fits the schema."""
        return bool(self._validator.is_valid(value))

    def problems(self, value: Any, most: int) -> list[tuple[Any, str]]:
        """Return at most `most` problems of a value, as paths and messages."""
        if self.is_valid(value):
            return []
        # The check is cached, but the search for problems is not. In a schema that contains itself,
        # the time of the search grows exponentially with the depth, and faster with more references
        # back.
        if self._returns and self._parts * self._returns ** _depth(value) > _MAX_RECURSIVE_WORK:
            problem = "it does not fit the schema; the place is unknown, as the schema is recursive"
            return [((), problem)]
        errors = islice(self._validator.iter_errors(value), most)
        return [(error.instance_path, error.message) for error in errors]


def build_validator(schema: Any, *, check_formats: bool = False) -> Validator:
    """Build a validator. It takes some milliseconds, or half a second for the largest schemas.

    Raises:
        SchemaRefused: The schema cannot be used.
        MissingExtraError: The validating package is not installed.
    """
    try:
        import jsonschema_rs  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise MissingExtraError(
            "checking JSON Schemas", extra="providers", missing="jsonschema_rs"
        ) from error
    measured = _Measured(schema)
    try:
        validator = jsonschema_rs.validator_for(
            schema, retriever=_refuse, validate_formats=check_formats or None
        )
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise SchemaRefused(f"it is not valid JSON Schema: {reason}", is_invalid=True) from error
    except BaseException as error:
        # A panic of compiled code is not an Exception.
        if type(error).__module__.startswith("pyo3"):
            raise SchemaRefused(f"it cannot be read: {error}") from error
        raise
    return Validator(validator, measured.parts, measured.returns)


def _refuse(address: str) -> NoReturn:
    raise ValueError(f"{address} is another document, and none is fetched")


def _depth(value: Any) -> int:
    deepest, pending = 0, [(value, 1)]
    while pending:
        part, depth = pending.pop()
        if isinstance(part, dict | list | tuple):
            deepest = max(deepest, depth)
            pending += [(member, depth + 1) for member in _members(part)]
    return deepest


def _members(part: Any) -> Iterable[Any]:
    return part.values() if isinstance(part, dict) else part


class _Measured:
    """A schema within the limits.

    Attributes:
        parts: Number of parts to check, with references followed.
        returns: Number of references that lead from a part back to itself.
    """

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._anchors: dict[str, Any] = {}
        self._known: dict[int, tuple[int, int, int]] = {}
        self._inside: set[int] = set()
        self._patterns = 0
        self._measure_parts()
        own = schema.get("$id") if isinstance(schema, dict) else None
        self._own_address = own.partition("#")[0] if isinstance(own, str) else ""
        self.parts, _, self.returns = self._follow(schema, 0)

    def _measure_parts(self) -> None:
        """Visit every part once, without following references."""
        draft = self._root.get("$schema") if isinstance(self._root, dict) else None
        is_old = isinstance(draft, str) and re.search("draft-0[34]", draft)
        names = ("$id", "id") if is_old else ("$id",)
        size, pending = 0, [(self._root, 1)]
        while pending:
            part, depth = pending.pop()
            size += len(part) + 2 if isinstance(part, str) else 8
            if isinstance(part, dict):
                size += sum(len(name) + 3 if isinstance(name, str) else 8 for name in part)
                if depth > 1 and any(isinstance(part.get(name), str) for name in names):
                    raise SchemaRefused(
                        "a part of it has its own $id, which is not supported; "
                        "refer to it by #/$defs/…"
                    )
                self._note(part)
            if isinstance(part, dict | list | tuple):
                if depth > _MAX_DEPTH:
                    raise SchemaRefused(f"it is nested more than {_MAX_DEPTH} levels deep")
                pending += [(member, depth + 1) for member in _members(part)]
            if size > LARGEST_SCHEMA or len(pending) > LARGEST_SCHEMA:
                raise SchemaRefused(f"it is larger than {LARGEST_SCHEMA} characters")

    def _note(self, part: dict[Any, Any]) -> None:
        for key in _ANCHORS:
            name = part.get(key)
            if isinstance(name, str) and self._anchors.setdefault(name, part) is not part:
                raise SchemaRefused(f"two parts of it have the anchor {name!r:.80}")
        several = part.get("patternProperties")
        for pattern in (part.get("pattern"), *(several if isinstance(several, dict) else ())):
            if isinstance(pattern, str):
                self._patterns += _cost(pattern)
                if self._patterns > _MAX_PATTERN_COST:
                    raise SchemaRefused("its patterns are too large, or repeat too much")

    def _follow(self, part: Any, depth: int) -> tuple[int, int, int]:
        """Measure a part with its references followed.

        Returns:
            The number of its parts, their depth, and the number of references that lead back up.
        """
        if not isinstance(part, dict | list | tuple):
            return 0, 0, 0
        known = self._known.get(id(part))
        if depth + (known[1] if known else 0) > _MAX_DEPTH:
            raise SchemaRefused(
                f"it is nested more than {_MAX_DEPTH} levels deep, with its references followed"
            )
        if known is not None:
            return known
        if id(part) in self._inside:
            return 1, 1, 1
        self._inside.add(id(part))
        total, height, returns = 1, 1, 0
        for member in self._below(part):
            parts, below, back = self._follow(member, depth + 1)
            total, height, returns = total + parts, max(height, below + 1), returns + back
            if total > _MAX_PARTS:
                raise SchemaRefused(
                    f"with its references followed it has more than {_MAX_PARTS} parts; "
                    "a check would take too long"
                )
        self._inside.discard(id(part))
        self._known[id(part)] = total, height, returns
        return total, height, returns

    def _below(self, part: Any) -> Iterator[Any]:
        yield from _members(part)
        for key in _REFERENCES if isinstance(part, dict) else ():
            reference = part.get(key)
            if isinstance(reference, str):
                yield self._target(reference)

    def _target(self, reference: str) -> Any:
        address, _, fragment = reference.partition("#")
        if address and address != self._own_address:
            raise SchemaRefused(
                f"it refers to {reference!r:.200}, which is another document, and none is fetched; "
                "put the referenced part under $defs"
            )
        fragment = unquote(fragment)
        place = self._root
        if fragment and not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise SchemaRefused(f"it refers to {reference!r:.200}, which is not in it")
            return self._anchors[fragment]
        for step in fragment.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and name in place:
                place = place[name]
            elif (
                isinstance(place, list | tuple) and name.isdecimal() and int(name[:9]) < len(place)
            ):
                place = place[int(name[:9])]
            else:
                raise SchemaRefused(f"it refers to {reference!r:.200}, which is not in it")
        return place


def _cost(pattern: str) -> int:
    """Estimate the cost of a pattern.

    It grows with the length, the square of the classes, and the product of counted repetitions.
    """
    classes = sum(map(pattern.count, "\\.["))
    repeated = 1
    for minimum, maximum in _COUNTED.findall(pattern[: _MAX_PATTERN_COST + 1]):
        repeated *= max(1, int((maximum or minimum)[:9]))
        if repeated > _MAX_PATTERN_COST:
            break
    return 20 * (len(pattern) + classes * classes) + repeated
