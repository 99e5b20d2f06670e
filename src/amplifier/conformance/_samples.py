"""Plain inputs for a tool, made from its schema without any luck: the kind of call an ordinary model would make.

Pure; the hostile inputs are drawn by `inputs`. Above stand the exercises; below stands nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEPTH = 6


def sample_inputs(schema: Mapping[str, Any] | None, file_name: str) -> list[dict[str, Any]]:
    """A few valid inputs: with all properties, and with the required ones only.

    Args:
        schema: The tool's schema; None when it gives none.
        file_name: The name of a file that exists, for properties that look like paths.
    """
    if not schema:
        return [{}]
    full = _value(schema, "", file_name, required_only=False)
    least = _value(schema, "", file_name, required_only=True)
    samples: list[dict[str, Any]] = [sample for sample in (least, full) if isinstance(sample, dict)]
    if not samples:
        return [{}]
    return samples[:1] if samples[:1] == samples[1:] else samples


def _value(schema: Any, name: str, file_name: str, *, required_only: bool, depth: int = 0) -> Any:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return "text"
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key] and "properties" not in schema:
            return _value(schema[key][0], name, file_name, required_only=required_only, depth=depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        return _object(schema, file_name, required_only, depth)
    if kind == "array":
        count = schema.get("minItems", 0 if required_only else 1)
        item = _value(schema.get("items", {}), name, file_name, required_only=required_only, depth=depth + 1)
        return [item] * (count if isinstance(count, int) else 1)
    if kind in ("integer", "number"):
        return _number(schema, kind)
    if kind in ("boolean", "null"):
        return False if kind == "boolean" else None
    return _text(schema, name.lower(), file_name)


def _object(schema: Mapping[str, Any], file_name: str, required_only: bool, depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    wanted = [name for name in properties if not required_only or name in required]
    wanted += [name for name in required if name not in properties]
    return {
        name: _value(properties.get(name, {}), name, file_name, required_only=required_only, depth=depth + 1)
        for name in wanted
    }


def _number(schema: Mapping[str, Any], kind: str) -> Any:
    for key, step in (("minimum", 0), ("exclusiveMinimum", 1), ("maximum", 0), ("exclusiveMaximum", -1)):
        bound = schema.get(key)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool):
            return int(bound) + step if kind == "integer" else bound + step
    return 1


def _text(schema: Mapping[str, Any], name: str, file_name: str) -> str:
    if schema.get("format") in ("uri", "url") or "url" in name:
        return "http://127.0.0.1:9/"
    if "path" in name or "file" in name:
        return file_name
    if "command" in name or name == "cmd":
        return "true"
    text = "text"
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and len(text) < least:
        text = "t" * least
    return text[:most] if isinstance(most, int) else text
