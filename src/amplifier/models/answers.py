"""Typed answers: the JSON Schema of a Python type, and reading an answer as that type."""

# Attrs classes, dataclasses, TypedDict, Literal, unions and builtin types go through msgspec.
# Pydantic models and lists, dicts and tuples of them go through pydantic, and a dict is taken for a
# JSON Schema. The schema finds every problem of an answer. msgspec and pydantic stop at the first
# one that only they can find.

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
from typing import Annotated, Any, Generic, TypeVar, overload

import attrs

from amplifier._internal.json import SchemaRefused, build_validator, format_path, rebuild
from amplifier.errors import MissingExtraError, Problem, ResultError

__all__ = [
    "AnswerFormat",
    "Argument",
    "PartialAnswer",
    "answer_format",
    "arguments_format",
    "to_json",
]

_T = TypeVar("_T")

_WRAPPER_KEY = "result"
"""The key under which a value is wrapped. Services accept only objects at the root of a schema."""

_FENCED = re.compile(r"\A\s*```[\w-]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_SHOWN = 2000


@attrs.frozen(kw_only=True)
class AnswerFormat(Generic[_T]):
    """The format of the answer to one prompt, made by `answer_format`.

    Loops get it as the keyword ``answer_format``. They give the model the schema and return the
    answer as JSON text.

    Attributes:
        name: A short name of the type, for the request.
        description: The docstring of the type, or "".
        schema: A JSON Schema whose root is an object.
        is_wrapped: True if the value is the member ``result`` of that object.
    """

    name: str
    description: str = ""
    schema: dict[str, Any]
    is_wrapped: bool
    _find_problems: Callable[[Any], Iterable[Problem]] = attrs.field(
        alias="find_problems", repr=False
    )
    _convert: Callable[[Any], _T] = attrs.field(alias="convert", repr=False)

    def read_text(self, text: str) -> _T:
        """Read an answer that is JSON text, perhaps in a Markdown code block.

        Raises:
            ResultError: It isn't JSON, or doesn't fit.
        """
        fenced = _FENCED.match(text)
        try:
            value = json.loads(fenced.group(1) if fenced else text)
        except (ValueError, RecursionError) as error:
            shown = f"{text[:200]!r}" if text.strip() else "nothing"
            raise self._error(
                [("$", f"expected JSON text, got {shown} ({error})")], text
            ) from error
        return self.read_value(value)

    def read_value(self, value: Any) -> _T:
        """Read an answer that is parsed JSON, such as the arguments of a tool call.

        Raises:
            ResultError: It doesn't fit.
        """
        problems = [
            (_path_of(path, self.is_wrapped), what) for path, what in self._find_problems(value)
        ]
        if not problems:
            try:
                return self._convert(value[_WRAPPER_KEY] if self.is_wrapped else value)
            except Exception as error:
                raise self._error(_problems_in(error, "$"), value) from error
        raise self._error(problems, value)

    def convert(self, value: Any, path: str) -> _T:
        """Return a value that fits the schema as the type.

        Raises:
            ResultError: The type refuses it for a reason that the schema doesn't have.
        """
        try:
            return self._convert(value)
        except Exception as error:
            raise self._error(_problems_in(error, path), value) from error

    def _error(self, problems: Iterable[Problem], answer: Any) -> ResultError:
        text = (
            answer
            if isinstance(answer, str)
            else json.dumps(answer, ensure_ascii=False, default=str)
        )
        return ResultError(problems, result_type=self.name, answer=text[:_SHOWN])


def _problems_in(error: Exception, path: str) -> list[Problem]:
    """Return the problems of a value below this path, from the error that its type raised.

    The error is one of pydantic or msgspec, or of the type's own code.
    """
    if isinstance(error, ResultError):
        return [(path + inner.removeprefix("$"), text) for inner, text in error.problems]
    listed = getattr(error, "errors", None)
    if callable(listed) and type(error).__module__.startswith("pydantic"):
        return [
            (path + _path_of(each["loc"], False).removeprefix("$"), each["msg"])
            for each in listed()
        ]
    text, _, inner = (
        str(error).replace(" - at `key` in `$", " in a key - at `$").partition(" - at `$")
    )
    is_own = not type(error).__module__.startswith("msgspec")
    return [(path + inner.rstrip("`"), f"{type(error).__name__}: {error}" if is_own else text)]


def _path_of(path: Iterable[Any], is_wrapped: bool) -> str:
    parts = list(path)
    return format_path(parts[1:] if is_wrapped and parts[:1] == [_WRAPPER_KEY] else parts, "$")


# ── while it is arriving ──────────────────────────────────────────────────────────────────────────

_ALWAYS_BELOW = 2048
_GROWTH = 1.05


class PartialAnswer:
    """Collects the pieces of an answer and parses them as they arrive.

    A long text is parsed again only when it has grown by a twentieth, so the whole effort stays
    linear in its length.
    """

    def __init__(self, answer_format: AnswerFormat[Any]) -> None:
        self._format = answer_format
        self._pieces: list[str] = []
        self._length = 0
        self._next = 0.0
        self._last: Any = None

    def add(self, piece: str) -> bool:
        """Take the next piece. Return whether `value` has changed."""
        from jiter import from_json  # noqa: PLC0415 — of an extra

        self._pieces.append(piece)
        self._length += len(piece)
        if self._length < self._next:
            return False
        self._next = 0 if self._length < _ALWAYS_BELOW else self._length * _GROWTH
        text = "".join(self._pieces)
        self._pieces = [text]
        begin = text.find("{")
        if begin < 0:
            return False
        try:
            value = from_json(
                text[begin:].encode(errors="replace"), partial_mode="trailing-strings"
            )
        except ValueError:
            return False
        if self._format.is_wrapped:
            value = value.get(_WRAPPER_KEY) if isinstance(value, dict) else None
        changed = value is not None and value != self._last
        self._last = value if changed else self._last
        return changed

    @property
    def value(self) -> Any:
        """The part that has arrived, as JSON values. Members that haven't arrived are missing."""
        return self._last


# ── from a type to a format ───────────────────────────────────────────────────────────────────────


_MOST_PROBLEMS = 20


@overload
def answer_format(result_type: type[_T]) -> AnswerFormat[_T]: ...
@overload
def answer_format(result_type: Any) -> AnswerFormat[Any]: ...
def answer_format(result_type: Any) -> AnswerFormat[Any]:
    """Return the format of an answer of this type.

    Args:
        result_type: An attrs class, a dataclass, a TypedDict, a Literal, a builtin type, a pydantic
            model, a union, list, dict or tuple of these, or a JSON Schema as a dict, whose answers
            are plain JSON values.

    Raises:
        TypeError: The type has no JSON Schema.
        MissingExtraError: The packages for typed answers aren't installed.
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
    """Return whether the type is a pydantic model or made of one, as ``list[Model]`` is.

    A field of another class doesn't count.
    """
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
    return _made(
        _name_of(result_type), schema, _with_whole_numbers(adapter.validate_python), result_type
    )


def _of_msgspec(result_type: Any) -> AnswerFormat[Any]:
    msgspec = _import_msgspec("a typed answer")
    try:
        schema = msgspec.json.schema(_with_text_keys(result_type))
    except (TypeError, NameError, RuntimeError) as error:
        raise _no_schema_error(result_type, error) from error
    convert = _with_whole_numbers(lambda value: msgspec.convert(value, result_type, str_keys=True))
    return _made(_name_of(result_type), schema, convert, result_type)


def _import_msgspec(feature: str) -> Any:
    """Return the package msgspec.

    Raises:
        MissingExtraError: It isn't installed, and the feature needs it.
    """
    try:
        import msgspec  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise MissingExtraError(feature, extra="providers", missing="msgspec") from error
    return msgspec


_KEYS = {
    "integer": r"^-?(0|[1-9][0-9]*)$",
    "number": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
}
"""The pattern of a number as a key of a JSON object, where every key is text."""


def _with_text_keys(kind: Any) -> Any:
    """Return the type with dicts keyed by text, from which its own keys are read."""
    changed, origin = _with_members(kind, _with_text_keys), typing.get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping) and typing.get_args(kind):
        return origin[_text_key(typing.get_args(kind)[0], kind), typing.get_args(changed)[1]]  # type: ignore[index]
    return changed


def _with_members(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return the type with its component types changed."""
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
    msgspec = _import_msgspec("a typed answer")
    own = _with_plain_root(msgspec.json.schema(key))
    form = own.get("type", "string")
    if form not in ("string", *_KEYS):
        name = getattr(key, "__name__", key)
        raise TypeError(f"the keys of {kind} are no text that a {name} could be read from")
    schema: dict[str, Any] = {
        word: own[word] for word in ("format", "minLength", "maxLength", "pattern") if word in own
    }
    if "enum" in own:
        schema = {"enum": [str(value) for value in own["enum"] if value is not None]}
    elif form in _KEYS:
        schema = {"pattern": _KEYS[form]}
    return Annotated[str, msgspec.Meta(extra_json_schema=schema)] if schema else key


def _with_whole_numbers(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``convert`` so that it accepts an integer that is written with a fraction of 0.

    JSON Schema accepts it, and some models write it.
    """

    def convert_any(value: Any) -> Any:
        try:
            return convert(value)
        except Exception:
            whole = rebuild(
                value,
                lambda part, _: int(part) if type(part) is float and part.is_integer() else part,
            )
            if whole == value and repr(whole) != repr(value):
                return convert(whole)
            raise

    return convert_any


def _no_schema_error(result_type: Any, error: Exception) -> TypeError:
    """Return the error about a type that msgspec or pydantic refuses.

    The text leaves out their advice about options, which the caller can't set.
    """
    lines = str(error).strip().splitlines()
    reason = lines[-1] if "schema_hook" in str(error) else str(error).partition("\n")[0]
    reason = reason.partition(". Set ")[0]
    return TypeError(
        f"result_type {result_type!r:.80} has no JSON Schema: {reason:.300}; expected an attrs "
        "class, a dataclass, a TypedDict, a Literal, a builtin type, a pydantic model, a union, "
        "list, dict or tuple of these, or a JSON Schema as a dict. A class with a field that is a "
        "pydantic model, and an attrs class beside one inside a list, dict or tuple, must be a "
        "pydantic model too"
    )


def _separate_members(result_type: Any) -> list[Any]:
    """Return the members of a union that msgspec can't read, or nothing for any other type.

    Such a union has classes that msgspec can't distinguish, or pydantic models.
    """
    if typing.get_origin(result_type) not in (typing.Union, types.UnionType):
        return []
    members = typing.get_args(result_type)
    classes = [
        member
        for member in members
        if inspect.isclass(member) and hasattr(member, "__annotations__")
    ]
    return list(members) if len(classes) > 1 or _has_pydantic(result_type) else []


def _of_union(result_type: Any, members: list[AnswerFormat[Any]]) -> AnswerFormat[Any]:
    """Return the format of a union. An answer has the type of the first member that it fits."""
    definitions: dict[str, Any] = {}
    schemas = [_embed_schema(member, definitions, number) for number, member in enumerate(members)]

    def convert(value: Any) -> Any:
        for member in members:
            shown = {_WRAPPER_KEY: value} if member.is_wrapped else value
            if not list(_problem_finder(member.schema)(shown)):
                return member.read_value(shown)
        raise ValueError("it fits no member of the union")

    union = {"anyOf": schemas} | ({"$defs": definitions} if definitions else {})
    return _made(_name_of(result_type), union, convert)


def _embed_schema(
    member: AnswerFormat[Any], definitions: dict[str, Any], number: int
) -> dict[str, Any]:
    """Return the schema of a format as a part of another one, which gets its definitions too.

    Definitions whose names are taken are numbered.
    """
    schema = member.schema["properties"][_WRAPPER_KEY] if member.is_wrapped else member.schema
    schema, own = (
        {word: value for word, value in schema.items() if word != "$defs"},
        member.schema.get("$defs", {}),
    )
    if any(definitions.get(label, value) != value for label, value in own.items()):
        # A name may already have such a suffix.
        while any(f"{label}_{number}" in {*definitions, *own} for label in own):
            number += 1
        schema = _rename_definitions(schema, number)
        own = {
            f"{label}_{number}": _rename_definitions(value, number) for label, value in own.items()
        }
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
    return (
        [_rename_definitions(item, number) for item in schema]
        if isinstance(schema, list)
        else schema
    )


def _made(
    name: str, schema: dict[str, Any], convert: Callable[[Any], Any], described: Any = None
) -> AnswerFormat[Any]:
    schema = _with_plain_root(copy.deepcopy(schema))
    is_wrapped = schema.get("type") != "object"
    if is_wrapped:
        definitions = schema.pop("$defs", None)
        schema = {
            "type": "object",
            "properties": {_WRAPPER_KEY: schema},
            "required": [_WRAPPER_KEY],
        }
        schema |= {"$defs": definitions} if definitions else {}
    _close_objects(schema)
    doc = (
        inspect.getdoc(described)
        if inspect.isclass(described) and "__doc__" in vars(described)
        else None
    )
    return AnswerFormat(
        name=name,
        description="" if doc is None or doc.startswith(f"{name}(") else doc,
        schema=schema,
        is_wrapped=is_wrapped,
        find_problems=_problem_finder(schema),
        convert=convert,
    )


def _with_plain_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the definition of its root inlined, as services require.

    The other definitions stay where references expect them.
    """
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
    """Forbid unknown members of objects that list theirs.

    Services require this for constrained output, and it reveals typos.
    """
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
        raise MissingExtraError(
            "a typed answer", extra="providers", missing="jsonschema-rs"
        ) from error
    except SchemaRefused as error:
        raise TypeError(f"the JSON Schema for result_type is refused: {error}") from error
    return lambda value: validator.problems(value, _MOST_PROBLEMS)


def _name_of(result_type: Any) -> str:
    """Return a name that services accept: letters, digits, ``_`` and ``-``."""
    given = (
        result_type.get("title")
        if isinstance(result_type, dict)
        else getattr(result_type, "__name__", None)
    )
    return re.sub(r"\W+", "_", str(given or "answer"), flags=re.ASCII).strip("_")[:60] or "answer"


# ── from the signature of a function to the format of its arguments ───────────────────────────────


_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
_UNKNOWN = ("Predicate", "Timezone")
_MISSING = inspect.Parameter.empty


@attrs.frozen(kw_only=True)
class Argument:
    """One argument of a function.

    Attributes:
        type: The annotation, with its metadata.
        default: The default value, or `inspect.Parameter.empty` if there is none.
        description: The description for the model, or "".
    """

    type: Any
    default: Any = _MISSING
    description: str = ""


def arguments_format(name: str, arguments: Mapping[str, Argument]) -> AnswerFormat[dict[str, Any]]:
    """Return the format of the arguments of a function.

    Reading a JSON object yields a dict of keywords. Arguments that the object lacks are missing.

    Raises:
        TypeError: A type has no JSON Schema. The message names the argument.
        MissingExtraError: The packages for typed functions aren't installed.
    """
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    members: dict[str, AnswerFormat[Any]] = {}
    for number, (key, argument) in enumerate(arguments.items()):
        try:
            member = (
                _of_pydantic(argument.type)
                if _has_field(argument.type)
                else answer_format(_for_msgspec(argument.type))
            )
        except TypeError as error:
            raise TypeError(
                f"argument {key!r}: {error}".replace("result_type ", "the type ")
            ) from error
        schema = _embed_schema(member, definitions, number)
        schema.pop("title", None)
        if description := argument.description or _description_in(argument.type):
            schema["description"] = description
        if argument.default is not _MISSING:
            schema.update(_written_default(argument.default))
        properties[key], members[key] = schema, member
    required = [key for key, argument in arguments.items() if argument.default is _MISSING]
    whole = {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }

    def convert(given: Any) -> dict[str, Any]:
        return {key: members[key].convert(value, f"$.{key}") for key, value in given.items()}

    return _made(name, {**whole, **({"$defs": definitions} if definitions else {})}, convert)


def _has_field(kind: Any) -> bool:
    """Return whether pydantic's ``Field`` is in the metadata of the type."""
    metadata = getattr(kind, "__metadata__", ())
    return any(type(item).__module__.startswith("pydantic") for item in metadata) or any(
        map(_has_field, typing.get_args(kind) if not metadata else typing.get_args(kind)[:1])
    )


def _for_msgspec(kind: Any) -> Any:
    """Return the type with constraints in msgspec's form, at every depth.

    It reads the constraints of annotated-types, and plain texts.
    """
    msgspec = _import_msgspec("a function as a tool")
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        base, metadata = _for_msgspec(members[0]), []
        for item in members[1:]:
            if isinstance(item, msgspec.Meta):
                metadata.append(item)
            elif isinstance(item, str):
                metadata.append(msgspec.Meta(description=item))
            else:
                found = {
                    key: getattr(item, key)
                    for key in _CONSTRAINTS
                    if getattr(item, key, None) is not None
                }
                metadata += [msgspec.Meta(**found)] if found else []
                if not found and type(item).__name__ in _UNKNOWN:
                    raise TypeError(
                        f"the constraint {item!r:.80} has no JSON Schema; check it in the function"
                    )
        if metadata and typing.get_origin(base) in (typing.Union, types.UnionType):
            each = [
                m if m is type(None) else Annotated[(m, *metadata)] for m in typing.get_args(base)
            ]
            return functools.reduce(operator.or_, each)
        return Annotated[(base, *metadata)] if metadata else base
    return _with_members(kind, _for_msgspec)


def _description_in(kind: Any) -> str:
    """Return the text in ``Annotated[int, "a description"]``."""
    metadata = getattr(kind, "__metadata__", ())
    texts = [*metadata, *(getattr(item, "documentation", None) for item in metadata)]
    return next((text for text in texts if isinstance(text, str)), "")


def _written_default(value: Any) -> dict[str, Any]:
    """Return the default as JSON Schema shows it, or nothing if it has no JSON form."""
    try:
        return {"default": to_json(value)}
    except TypeError:
        return {}


def to_json(value: Any) -> Any:
    """Return the JSON form of a value.

    The value may be of a builtin type, an attrs class, a dataclass, a model of pydantic or of this
    package, a date, or an enum.

    Raises:
        TypeError: It has no JSON form.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    msgspec = _import_msgspec("a function as a tool")
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json_by_method)


def _to_json_by_method(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
