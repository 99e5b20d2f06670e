"""JSON and JSON Schema for checks: is this value JSON, is this schema valid, does it accept that input.

The validator comes with the ``testing`` extra.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amplifier._internal.json import SchemaRefused, Validator, build_validator
from amplifier.errors import MissingExtraError

_DEEPEST = 900
"""Levels; Python's own parser cannot read text that is nested deeper."""

Accepts = Callable[[Any], bool]


def json_problem(value: Any, path: str = "", inside: tuple[int, ...] = ()) -> str | None:
    """What keeps a value from being JSON, with the place; None if nothing does. A tuple counts as a list."""
    if value is None or isinstance(value, (bool, int)):
        return None
    where = f" at {path}" if path else ""
    if isinstance(value, str):
        return (
            f"half a surrogate pair{where}"
            if any("\ud800" <= each <= "\udfff" for each in value)
            else None
        )
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value}{where}, which is not a JSON number"
    if not isinstance(value, (dict, list, tuple)):
        return f"a {type(value).__name__}{where}"
    if id(value) in inside or len(inside) > _DEEPEST:
        return f"a value without end{where}"
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in members:
        if isinstance(value, dict) and not isinstance(key, str):
            return f"the {type(key).__name__} key {key!r}{where}"
        problem = json_problem(member, f"{path}[{key!r}]", (*inside, id(value)))
        if problem is not None:
            return problem
    return None


def fingerprint(value: Any) -> str:
    """A text that is equal for equal values only; 1, True and 1.0 differ."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def schema_problem(schema: Any) -> str | None:
    """What is wrong with a JSON Schema of an object; None if nothing is, or if that cannot be decided."""
    problem = json_problem(schema)
    if problem is not None:
        return f"it holds {problem}"
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        return f"it describes {kinds!r}, expected 'object'"
    plain = json.loads(json.dumps(schema))  # with lists for tuples
    try:
        _build(plain)
    except SchemaRefused as error:
        if error.is_invalid:
            return str(error)
    return next(_lost_references(plain, plain), None)


def acceptor(schema: Mapping[str, Any] | None, *, check_formats: bool = True) -> Accepts | None:
    """A function that decides whether a schema accepts a value; None if the schema cannot be understood."""
    if not schema:
        return None
    try:
        plain = json.loads(json.dumps(schema))
        accepts = _build(plain, check_formats=check_formats).is_valid
    except MissingExtraError:
        raise
    except Exception:  # noqa: BLE001 — a third-party schema in a third-party library: it fails in many ways
        return None

    def is_accepted(value: Any) -> bool:
        try:
            return bool(accepts(value))
        except (ValueError, TypeError, OverflowError):
            return False

    return is_accepted


def resolved(schema: Any, root: Any, depth: int = 8) -> dict[str, Any]:
    """A schema with its own reference followed and its ``allOf`` folded in; empty when there is nothing to read."""
    if not isinstance(schema, Mapping) or depth < 0:
        return {}
    found = dict(schema)
    reference = found.pop("$ref", None)
    if isinstance(reference, str):
        found = {**resolved(_pointed(reference, root), root, depth - 1), **found}
    parts = found.pop("allOf", None)
    for part in parts if isinstance(parts, list) else ():
        found = merged(found, resolved(part, root, depth - 1))
    return found


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both schemas in one, with the properties and required keys of both; for the rest the first takes precedence."""
    found = {**other, **one}
    for key in ("properties", "required"):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found[key] = {**theirs, **mine}
        elif isinstance(mine, list) and isinstance(theirs, list):
            found[key] = [*mine, *(each for each in theirs if each not in mine)]
    return found


def _pointed(reference: str, root: Any) -> Any:
    """The target of a reference within the same document; None if there is none or it is in another document."""
    if not reference.startswith("#"):
        return None
    place = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdigit() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place


def _lost_references(part: Any, root: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        reference = part.get("$ref")
        # An anchor (#name) is found by other means than a path.
        if (
            isinstance(reference, str)
            and reference.startswith("#/")
            and _pointed(reference, root) is None
        ):
            yield f"it refers to {reference!r}, which is not in it"
        pattern = part.get("pattern")
        if isinstance(pattern, str) and not _compiles(pattern):
            yield f"it holds the pattern {pattern!r}, which is no regular expression"
        for key, member in part.items():
            if key not in ("const", "default", "enum", "examples"):
                yield from _lost_references(member, root)
    for member in part if isinstance(part, list) else ():
        yield from _lost_references(member, root)


def _compiles(pattern: str) -> bool:
    """Whether a pattern is valid in either dialect in use: the standard's, or Python's."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return bool(
            re.search(r"\\[pPuc]|\\/|\(\?<", pattern)
        )  # valid in the standard's dialect, unknown to Python's
    return True


def _build(schema: Any, *, check_formats: bool = True) -> Validator:
    try:
        return build_validator(schema, check_formats=check_formats)
    except MissingExtraError as error:  # most of the kit works without it
        raise MissingExtraError(
            "checking tools", extra="testing", missing="jsonschema_rs"
        ) from error
