"""The one place where a JSON Schema becomes a validator.

A schema may come from anyone, such as an MCP server. It never causes a request: a reference leads into the schema itself or is
refused. The package that validates is compiled code that nothing can interrupt, so everything that its work grows with is measured first
and has a limit: the size, the depth, the patterns, and how much there is to check once every reference is followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn
from urllib.parse import unquote

from amplifier.errors import MissingExtraError

LARGEST_SCHEMA = 262_144
"""Characters, about: texts and names count their length, everything else 8."""
_DEEPEST = 128
"""Levels of objects and lists, references followed."""
_MOST_TO_CHECK = 200_000
"""Parts, where a part that is referred to counts once for each way to it."""
_LARGEST_PATTERNS = 200_000
"""All patterns together; see `_cost`. A pattern of 100 classes takes a tenth of a second, one of 1,000 several seconds."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_COUNTED = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_RECURSIVE_WORK = 100_000


class SchemaRefused(ValueError):
    """A schema cannot be used: it is not valid JSON Schema, leads to another document, or is beyond a limit.

    Attributes:
        is_invalid: It is not valid JSON Schema.
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
        """Whether the value fits the schema."""
        return bool(self._validator.is_valid(value))

    def problems(self, value: Any, most: int) -> list[tuple[Any, str]]:
        """What is wrong with a value, as paths and messages; empty if it is valid."""
        if self.is_valid(value):
            return []
        # A check is cached, but finding the problems is not: in a schema that contains itself its time grows exponentially
        # with the depth, the faster the more ways lead back into it.
        if self._returns and self._parts * self._returns ** _depth(value) > _RECURSIVE_WORK:
            return [
                (
                    (),
                    "it does not fit the schema, which contains itself; the place in it is not searched for",
                )
            ]
        found = []
        for error in self._validator.iter_errors(value):
            found.append((error.instance_path, error.message))
            if len(found) == most:
                break
        return found


def build_validator(schema: Any, *, check_formats: bool = False) -> Validator:
    """Make a validator. It takes some milliseconds, and for a schema at the limits up to half a second.

    Raises:
        SchemaRefused: The schema cannot be used; the message has the reason.
        MissingExtraError: The package that validates is not installed.
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
        if type(error).__module__.startswith(
            "pyo3"
        ):  # a panic of compiled code, which is no Exception
            raise SchemaRefused(f"it cannot be read: {error}") from error
        raise
    return Validator(validator, measured.parts, measured.returns)


def _refuse(address: str) -> NoReturn:
    raise ValueError(f"{address} is another document, and none is fetched")


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, dict | list | tuple):
            deepest = max(deepest, depth)
            waiting += [
                (member, depth + 1)
                for member in (part.values() if isinstance(part, dict) else part)
            ]
    return deepest


class _Measured:
    """A schema within the limits.

    Attributes:
        parts: How many there are to check.
        returns: How many ways lead from a part back to itself.
    """

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._anchors: dict[str, Any] = {}
        self._known: dict[int, tuple[int, int, int]] = {}
        self._inside: set[int] = set()
        self._patterns = 0
        self._take_stock()
        own = schema.get("$id") if isinstance(schema, dict) else None
        self._own_address = own.partition("#")[0] if isinstance(own, str) else ""
        self.parts, _, self.returns = self._follow(schema, 0)

    def _take_stock(self) -> None:
        """Look at everything once, without following references."""
        draft = self._root.get("$schema") if isinstance(self._root, dict) else None
        names = (
            ("$id", "id")
            if isinstance(draft, str) and re.search("draft-0[34]", draft)
            else ("$id",)
        )
        size, waiting = 0, [(self._root, 1)]
        while waiting:
            part, depth = waiting.pop()
            size += len(part) + 2 if isinstance(part, str) else 8
            if isinstance(part, dict):
                size += sum(len(name) + 3 if isinstance(name, str) else 8 for name in part)
                if depth > 1 and any(isinstance(part.get(name), str) for name in names):
                    raise SchemaRefused(
                        "a part of it has an $id of its own, which is not supported; refer to it by #/$defs/…"
                    )
                self._note(part)
            if isinstance(part, dict | list | tuple):
                if depth > _DEEPEST:
                    raise SchemaRefused(f"it is nested more than {_DEEPEST} levels deep")
                waiting += [
                    (member, depth + 1)
                    for member in (part.values() if isinstance(part, dict) else part)
                ]
            if size > LARGEST_SCHEMA or len(waiting) > LARGEST_SCHEMA:
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
                if self._patterns > _LARGEST_PATTERNS:
                    raise SchemaRefused("its patterns are too large, or repeat too much")

    def _follow(self, part: Any, depth: int) -> tuple[int, int, int]:
        """How many parts there are to check at and below one, references followed, how deep they are, and how many lead back up."""
        if not isinstance(part, dict | list | tuple):
            return 0, 0, 0
        known = self._known.get(id(part))
        if depth + (known[1] if known else 0) > _DEEPEST:
            raise SchemaRefused(
                f"it is nested more than {_DEEPEST} levels deep, with its references followed"
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
            if total > _MOST_TO_CHECK:
                raise SchemaRefused(
                    f"with its references followed it has more than {_MOST_TO_CHECK} parts; a check would take too long"
                )
        self._inside.discard(id(part))
        self._known[id(part)] = total, height, returns
        return total, height, returns

    def _below(self, part: Any) -> Iterator[Any]:
        members: Iterable[Any] = part.values() if isinstance(part, dict) else part
        yield from members
        for key in _REFERENCES if isinstance(part, dict) else ():
            reference = part.get(key)
            if isinstance(reference, str):
                yield self._target(reference)

    def _target(self, reference: str) -> Any:
        address, _, fragment = reference.partition("#")
        if address and address != self._own_address:
            raise SchemaRefused(
                f"it refers to {reference!r:.200}, which is another document, and none is fetched; put what it refers to under $defs"
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
    """About what a pattern costs: its length, the square of its classes, and the product of its counted repetitions."""
    classes = sum(map(pattern.count, "\\.["))
    repeated = 1
    for least, most in _COUNTED.findall(pattern[: _LARGEST_PATTERNS + 1]):
        repeated *= max(1, int((most or least)[:9]))
        if repeated > _LARGEST_PATTERNS:
            break
    return 20 * (len(pattern) + classes * classes) + repeated
