"""Check JSON values and JSON Schemas. The validator comes with the ``testing`` extra."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amplifier._internal.json import SchemaRefused, Validator, build_validator
from amplifier.errors import MissingExtraError

_MAX_DEPTH = 900
"""Maximum depth of nesting. Python's own parser cannot read deeper text."""

Accepts = Callable[[Any], bool]


def json_problem(value: Any, path: str = "", inside: tuple[int, ...] = ()) -> str | None:
    """Return the reason why a value is not JSON, with its place, or None if it is JSON.

    A tuple counts as a list.
    """
    if value is None or isinstance(value, (bool, int)):
        return None
    where = f" at {path}" if path else ""
    if isinstance(value, str):
        return (
            f"half a surrogate pair{where}"
            if any("\ud800" <= character <= "\udfff" for character in value)
            else None
        )
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value}{where}, which is not a JSON number"
    if not isinstance(value, (dict, list, tuple)):
        return f"a {type(value).__name__}{where}"
    if id(value) in inside or len(inside) > _MAX_DEPTH:
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
    """Return a text that is the same only for equal values, where 1, True and 1.0 differ."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def schema_problem(schema: Any) -> str | None:
    """Return the fault of a JSON Schema of an object, or None if it has none or is undecidable."""
    problem = json_problem(schema)
    if problem is not None:
        return f"it holds {problem}"
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        return f"it describes {kinds!r}, expected 'object'"
    # This turns tuples into lists.
    plain = json.loads(json.dumps(schema))
    try:
        _build(plain)
    except SchemaRefused as error:
        if error.is_invalid:
            return str(error)
    return next(_lost_references(plain, plain), None)


def acceptor(schema: Mapping[str, Any] | None, *, check_formats: bool = True) -> Accepts | None:
    """Return a function that tests a value against a schema, or None if that is unreadable."""
    if not schema:
        return None
    try:
        plain = json.loads(json.dumps(schema))
        accepts = _build(plain, check_formats=check_formats).is_valid
    except MissingExtraError:
        raise
    # A third-party schema can fail in many ways inside a third-party library.
    except Exception:  # noqa: BLE001
        return None

    def is_accepted(value: Any) -> bool:
        try:
            return bool(accepts(value))
        except (ValueError, TypeError, OverflowError):
            return False

    return is_accepted


def resolved(schema: Any, root: Any, depth: int = 8) -> dict[str, Any]:
    """Return a schema with its reference followed and its ``allOf`` folded in.

    The result is empty if there is nothing to read.
    """
    if not isinstance(schema, Mapping) or depth < 0:
        return {}
    result = dict(schema)
    reference = result.pop("$ref", None)
    if isinstance(reference, str):
        result = {**resolved(_pointed(reference, root), root, depth - 1), **result}
    parts = result.pop("allOf", None)
    for part in parts if isinstance(parts, list) else ():
        result = merged(result, resolved(part, root, depth - 1))
    return result


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge two schemas with the properties and required keys of both.

    The first takes precedence for the other keys.
    """
    result = {**other, **one}
    for key in ("properties", "required"):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            result[key] = {**theirs, **mine}
        elif isinstance(mine, list) and isinstance(theirs, list):
            result[key] = [*mine, *(item for item in theirs if item not in mine)]
    return result


def _pointed(reference: str, root: Any) -> Any:
    """Return the target of a reference within the document, or None if it has none there."""
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
            yield f"it holds the pattern {pattern!r}, which is not a regular expression"
        for key, member in part.items():
            if key not in ("const", "default", "enum", "examples"):
                yield from _lost_references(member, root)
    for member in part if isinstance(part, list) else ():
        yield from _lost_references(member, root)


def _compiles(pattern: str) -> bool:
    """Return whether a pattern is valid in the standard's dialect or in Python's."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        # These are valid in the standard's dialect, but not in Python's.
        return bool(re.search(r"\\[pPuc]|\\/|\(\?<", pattern))
    return True


def _build(schema: Any, *, check_formats: bool = True) -> Validator:
    try:
        return build_validator(schema, check_formats=check_formats)
    # Most of the kit works without the validator.
    except MissingExtraError as error:
        raise MissingExtraError(
            "checking tools", extra="testing", missing="jsonschema_rs"
        ) from error
