"""From a Python type to the format of an answer.

attrs classes, dataclasses, TypedDict, Literal, unions and builtin types go through msgspec, pydantic models and the lists, dicts and
tuples of them through pydantic, and a dict is taken for a JSON Schema. Every problem of an answer is found by the schema; msgspec and pydantic stop at what only they know.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar, overload

from amplifier._json import SchemaRefused, build_validator, rebuild
from amplifier.errors import MissingExtraError

from ._answer_format import WRAPPER_KEY, AnswerFormat

T = TypeVar("T")

_MOST_PROBLEMS = 20


@overload
def answer_format(result_type: type[T]) -> AnswerFormat[T]: ...
@overload
def answer_format(result_type: Any) -> AnswerFormat[Any]: ...
def answer_format(result_type: Any) -> AnswerFormat[Any]:
    """The format of an answer of this type.

    Args:
        result_type: An attrs class, a dataclass, a TypedDict, a Literal, a builtin type, a pydantic model, a union, list, dict or
            tuple of these, or a JSON Schema as a dict, whose answers are plain JSON values.

    Raises:
        TypeError: The type has no JSON Schema.
        MissingExtraError: The packages that typed answers take are not installed.
    """
    if isinstance(result_type, dict):
        return _made(_name_of(result_type), result_type, lambda value: value)
    members = _separate_members(result_type)
    if members:
        return _of_union(result_type, [answer_format(member) for member in members])
    if _has_pydantic(result_type):
        return _of_pydantic(result_type)
    return _of_msgspec(result_type)


def _has_pydantic(result_type: Any) -> bool:
    """Whether the type is a pydantic model or made of one, as ``list[Model]`` is; a field of another class does not count."""
    if isinstance(result_type, type) and hasattr(result_type, "__pydantic_validator__"):
        return True
    return any(map(_has_pydantic, typing.get_args(result_type)))


def _of_pydantic(result_type: Any) -> AnswerFormat[Any]:
    import pydantic  # noqa: PLC0415 — the caller's class is there, so it is installed

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(result_type)
        schema = adapter.json_schema()
    except (TypeError, NameError, RuntimeError) as error:
        raise _no_schema_error(result_type, error) from error
    return _made(_name_of(result_type), schema, _with_whole_numbers(adapter.validate_python), result_type)


def _of_msgspec(result_type: Any) -> AnswerFormat[Any]:
    msgspec = import_msgspec("a typed answer")
    try:
        schema = msgspec.json.schema(_with_text_keys(result_type))
    except (TypeError, NameError, RuntimeError) as error:
        raise _no_schema_error(result_type, error) from error
    convert = _with_whole_numbers(lambda value: msgspec.convert(value, result_type, str_keys=True))
    return _made(_name_of(result_type), schema, convert, result_type)


def import_msgspec(feature: str) -> Any:
    """The package msgspec.

    Raises:
        MissingExtraError: It is not installed, and the feature needs it.
    """
    try:
        import msgspec  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise MissingExtraError(feature, extra="typed", missing="msgspec") from error
    return msgspec


_KEYS = {"integer": r"^-?(0|[1-9][0-9]*)$", "number": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"}
"""How a number looks that is a key: those of a JSON object are texts."""


def _with_text_keys(kind: Any) -> Any:
    """The type with dicts whose keys are the texts that its own are read from."""
    changed, origin = _with_members(kind, _with_text_keys), typing.get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping) and typing.get_args(kind):
        return origin[_text_key(typing.get_args(kind)[0], kind), typing.get_args(changed)[1]]  # type: ignore[index]
    return changed


def _with_members(kind: Any, change: Callable[[Any], Any]) -> Any:
    """The type with the types that it is made of changed."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if not members or origin is typing.Literal:
        return kind
    if origin is Annotated:
        return Annotated[(change(members[0]), *members[1:])]
    changed = tuple(member if member is ... else change(member) for member in members)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, changed)
    return kind if changed == members else origin[changed]


def _text_key(key: Any, kind: Any) -> Any:
    msgspec = import_msgspec("a typed answer")
    own = _with_plain_root(msgspec.json.schema(key))
    form = own.get("type", "string")
    if form not in ("string", *_KEYS):
        raise TypeError(f"the keys of {kind} are no text that a {getattr(key, '__name__', key)} could be read from")
    schema: dict[str, Any] = {
        word: own[word] for word in ("format", "minLength", "maxLength", "pattern") if word in own
    }
    if "enum" in own:
        schema = {"enum": [str(value) for value in own["enum"] if value is not None]}
    elif form in _KEYS:
        schema = {"pattern": _KEYS[form]}
    return Annotated[str, msgspec.Meta(extra_json_schema=schema)] if schema else key


def _with_whole_numbers(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, also for an integer that is written with a fraction of 0, as JSON Schema has it and some models do."""

    def convert_any(value: Any) -> Any:
        try:
            return convert(value)
        except Exception:
            whole = rebuild(value, lambda part, _: int(part) if type(part) is float and part.is_integer() else part)
            if whole == value and repr(whole) != repr(value):
                return convert(whole)
            raise

    return convert_any


def _no_schema_error(result_type: Any, error: Exception) -> TypeError:
    """The error about a type that msgspec or pydantic refuses, without their advice about options that are not the caller's to set."""
    reason = str(error).strip().splitlines()[-1] if "schema_hook" in str(error) else str(error).partition("\n")[0]
    return TypeError(
        f"result_type {result_type!r:.80} has no JSON Schema: {reason.partition('. Set ')[0]:.300}; expected an attrs class, a "
        "dataclass, a TypedDict, a Literal, a builtin type, a pydantic model, a union, list, dict or tuple of these, or a JSON Schema "
        "as a dict. A class with a field that is a pydantic model, and an attrs class beside one inside a list, dict or tuple, must be a "
        "pydantic model too"
    )


def _separate_members(result_type: Any) -> list[Any]:
    """The members of a union with classes that msgspec could not tell apart, or with pydantic models; none of other types."""
    if typing.get_origin(result_type) not in (typing.Union, types.UnionType):
        return []
    members = typing.get_args(result_type)
    classes = [member for member in members if inspect.isclass(member) and hasattr(member, "__annotations__")]
    return list(members) if len(classes) > 1 or _has_pydantic(result_type) else []


def _of_union(result_type: Any, members: list[AnswerFormat[Any]]) -> AnswerFormat[Any]:
    """A union whose members are read one by one: an answer is of the first one whose schema it fits."""
    definitions: dict[str, Any] = {}
    schemas = [embed_schema(member, definitions, number) for number, member in enumerate(members)]

    def convert(value: Any) -> Any:
        for member in members:
            shown = {WRAPPER_KEY: value} if member.is_wrapped else value
            if not list(_problem_finder(member.schema)(shown)):
                return member.read_value(shown)
        raise ValueError("it fits no member of the union")

    union = {"anyOf": schemas} | ({"$defs": definitions} if definitions else {})
    return _made(_name_of(result_type), union, convert)


def embed_schema(member: AnswerFormat[Any], definitions: dict[str, Any], number: int) -> dict[str, Any]:
    """The schema of a format as a part of another one, which gets its definitions too; those whose names are taken are numbered."""
    schema = member.schema["properties"][WRAPPER_KEY] if member.is_wrapped else member.schema
    schema, own = {word: value for word, value in schema.items() if word != "$defs"}, member.schema.get("$defs", {})
    if any(definitions.get(label, value) != value for label, value in own.items()):
        while any(f"{label}_{number}" in {*definitions, *own} for label in own):  # a name may look like that by itself
            number += 1
        schema = _rename_definitions(schema, number)
        own = {f"{label}_{number}": _rename_definitions(value, number) for label, value in own.items()}
    definitions |= own
    return schema


def _rename_definitions(schema: Any, number: int) -> Any:
    if isinstance(schema, dict):
        return {
            key: f"{value}_{number}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#/$defs/")
            else _rename_definitions(value, number)
            for key, value in schema.items()
        }
    return [_rename_definitions(item, number) for item in schema] if isinstance(schema, list) else schema


def _made(name: str, schema: dict[str, Any], convert: Callable[[Any], Any], described: Any = None) -> AnswerFormat[Any]:
    schema = _with_plain_root(copy.deepcopy(schema))
    is_wrapped = schema.get("type") != "object"
    if is_wrapped:
        definitions = schema.pop("$defs", None)
        schema = {"type": "object", "properties": {WRAPPER_KEY: schema}, "required": [WRAPPER_KEY]}
        schema |= {"$defs": definitions} if definitions else {}
    _close_objects(schema)
    doc = inspect.getdoc(described) if inspect.isclass(described) and "__doc__" in vars(described) else None
    return AnswerFormat(
        name=name,
        description="" if doc is None or doc.startswith(f"{name}(") else doc,
        schema=schema,
        is_wrapped=is_wrapped,
        find_problems=_problem_finder(schema),
        convert=convert,
    )


def _with_plain_root(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its root in place, which services demand; definitions stay where references to them expect them."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        definitions = schema.get("$defs", {})
        name = reference.removeprefix("#/$defs/")
        if name in definitions:
            is_recursive = json.dumps(reference) in json.dumps(definitions)
            rest = {key: value for key, value in definitions.items() if is_recursive or key != name}
            return {**definitions[name], **({"$defs": rest} if rest else {})}
    return schema


def _close_objects(schema: Any) -> None:
    """Forbid unknown members of objects that list theirs: services demand it for constrained output, and typos show."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
            schema.setdefault("additionalProperties", False)
        for key, value in schema.items():
            if key not in ("enum", "const", "default", "examples"):
                _close_objects(value)
    elif isinstance(schema, list):
        for item in schema:
            _close_objects(item)


def _problem_finder(schema: dict[str, Any]) -> Callable[[Any], Iterable[Any]]:
    try:
        validator = build_validator(schema)
    except MissingExtraError as error:
        raise MissingExtraError("a typed answer", extra="typed", missing="jsonschema-rs") from error
    except SchemaRefused as error:
        raise TypeError(f"the JSON Schema for result_type is refused: {error}") from error
    return lambda value: validator.problems(value, _MOST_PROBLEMS)


def _name_of(result_type: Any) -> str:
    """A name that services accept: letters, digits, ``_`` and ``-``."""
    given = result_type.get("title") if isinstance(result_type, dict) else getattr(result_type, "__name__", None)
    return re.sub(r"\W+", "_", str(given or "answer"), flags=re.ASCII).strip("_")[:60] or "answer"
