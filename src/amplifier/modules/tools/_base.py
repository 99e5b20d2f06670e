"""What built-in tools share: a base class, and input checked against the published schema, which supports the keywords they use."""

from __future__ import annotations

import copy
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from amplifier.models import ToolResult

from .._shared.failure import ToolFailure, failure_from_os, shown

__all__ = [
    "BuiltinTool",
    "check_input",
    "flag_schema",
    "object_schema",
    "path_schema",
    "text_schema",
    "whole_number_schema",
]

logger = logging.getLogger("amplifier.modules.tools")


class BuiltinTool(ABC):
    """A tool with a fixed name, description and schema; subclasses do the work in `_run`.

    Attributes:
        repeatable: Whether a call that was cut off with its process may run again, see `amplifier.contracts.Tool`.
    """

    repeatable: ClassVar[bool | None] = None
    _name: str
    _description: str
    _schema: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self._name

    @property
    def description(self) -> str:
        """What it does, as text for the model."""
        return self._description

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input, a copy."""
        return copy.deepcopy(dict(self._schema))

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        """Check the input, do the work, and answer; only cancellation is raised."""
        values: dict[str, Any] = {}
        try:
            values = self._read_input(input)
            return await self._run(values)
        except ToolFailure as failure:
            return self._failed(failure)
        except OSError as error:
            return self._failed(failure_from_os(error, self._subject(values)))

    @abstractmethod
    async def _run(self, values: dict[str, Any]) -> ToolResult:
        """Do the work on input that fits the schema, defaults filled in.

        Raises:
            ToolFailure: It cannot be done.
            OSError: The same, reported by the system.
        """

    def _read_input(self, given: Any) -> dict[str, Any]:
        """The input with defaults filled in.

        Raises:
            ToolFailure: It does not fit the schema.
        """
        values, problems = check_input(self._schema, given)
        if problems:
            raise ToolFailure("InvalidInput", "; ".join(problems))
        return values  # type: ignore[no-any-return]  # every schema is one of an object

    def _subject(self, values: dict[str, Any]) -> str:
        return shown(str(values.get("file_path") or values.get("path") or ""))

    def _failed(self, failure: ToolFailure) -> ToolResult:
        message = shown(str(failure), 4000)
        logger.info("tool %s: %s (%s)", self.name, message, failure.kind)
        return ToolResult(success=False, error={"message": message, "type": failure.kind})


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────


def object_schema(properties: dict[str, dict[str, Any]], *required: str) -> dict[str, Any]:
    """The schema of an input with these members and no others."""
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def text_schema(description: str, least: int | None = None, most: int | None = None, **more: Any) -> dict[str, Any]:
    """The schema of a text of so many characters."""
    return _schema("string", description, {"minLength": least, "maxLength": most}, more)


def whole_number_schema(description: str, least: int, most: int | None = None, **more: Any) -> dict[str, Any]:
    """The schema of a whole number in a range."""
    return _schema("integer", description, {"minimum": least, "maximum": most}, more)


def flag_schema(description: str) -> dict[str, Any]:
    """The schema of a switch that is off by default."""
    return _schema("boolean", description, {}, {"default": False})


def path_schema(description: str, **more: Any) -> dict[str, Any]:
    """The schema of the path of a file or directory."""
    return text_schema(description, 1, 4096, **more)


def _schema(kind: str, description: str, bounds: dict[str, int | None], more: dict[str, Any]) -> dict[str, Any]:
    limits = {keyword: bound for keyword, bound in bounds.items() if bound is not None}
    return {"type": kind, "description": description, **limits, **more}


# ── checking an input ────────────────────────────────────────────────────────────────────────────


_WORDS = frozenset({"description", "default", "examples", "title"})
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "enum"}),
    "integer": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
}
_MOST_PROBLEMS = 5


def check_input(schema: Mapping[str, Any], given: Any) -> tuple[Any, list[str]]:
    """Return the input with defaults filled in, and what is wrong with it.

    Args:
        schema: A JSON Schema of the keywords above.
        given: Any JSON value; not changed.

    Returns:
        The value, unusable if there are problems, and the problems as text for the model.
    """
    problems: list[str] = []
    value = _checked(schema, given, "", problems)
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more problems"]
    return value, problems


def _checked(schema: Mapping[str, Any], value: Any, path: str, problems: list[str]) -> Any:
    kind = schema["type"]
    unknown = schema.keys() - _KEYWORDS[kind] - _WORDS - {"type"}
    if unknown:
        raise ValueError(f"schema at {path or 'the top'}: keywords {sorted(unknown)} are not supported")
    checker = {"object": _object, "array": _array, "string": _string, "integer": _integer, "boolean": _boolean}[kind]
    return checker(schema, value, path, problems)


def _object(schema: Mapping[str, Any], value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, dict):
        return _complain(problems, path, f"expected an object, got {_found(value)}")
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            problems.append(f"{_join(path, name)}: required, but missing")
    result = {}
    for name, member in value.items():
        if name in properties:
            result[name] = _checked(properties[name], member, _join(path, name), problems)
        elif schema.get("additionalProperties", True) is False:
            known = ", ".join(properties) or "no keys at all"
            problems.append(f"{_join(path, shown(str(name), 60))}: unknown key; expected {known}")
    for name, inner in properties.items():
        if name not in value and "default" in inner:
            result[name] = inner["default"]
    return result


def _array(schema: Mapping[str, Any], value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, list):
        return _complain(problems, path, f"expected a list, got {_found(value)}")
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least or (most is not None and len(value) > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        return _complain(problems, path, f"expected {bounds} items, got {len(value)}")
    return [_checked(schema["items"], member, f"{path}[{index}]", problems) for index, member in enumerate(value)]


def _string(schema: Mapping[str, Any], value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, str):
        return _complain(problems, path, f"expected a string, got {_found(value)}")
    if "enum" in schema and value not in schema["enum"]:
        return _complain(problems, path, f"expected one of {', '.join(schema['enum'])}, got {_found(value)}")
    if len(value) < schema.get("minLength", 0):
        return _complain(problems, path, f"expected at least {schema['minLength']} characters, got {len(value)}")
    if len(value) > schema.get("maxLength", len(value)):
        return _complain(problems, path, f"expected at most {schema['maxLength']} characters, got {len(value)}")
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return _complain(problems, path, f"expected text that matches {schema['pattern']}, got {_found(value)}")
    return value


def _integer(schema: Mapping[str, Any], value: Any, path: str, problems: list[str]) -> Any:
    # To JSON Schema 3.0 is an integer, and true is not.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        return _complain(problems, path, f"expected a whole number, got {_found(value)}")
    least, most = schema.get("minimum"), schema.get("maximum")
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        return _complain(problems, path, f"expected {bounds}, got {_found(value)}")
    return int(value)


def _boolean(schema: Mapping[str, Any], value: Any, path: str, problems: list[str]) -> Any:
    return (
        value if isinstance(value, bool) else _complain(problems, path, f"expected true or false, got {_found(value)}")
    )


def _complain(problems: list[str], path: str, problem: str) -> None:
    problems.append(f"{path or 'the input'}: {problem}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _found(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a very large number"  # Python refuses to write some of them
    return shown(ascii(value) if isinstance(value, str) else repr(value), 80)
