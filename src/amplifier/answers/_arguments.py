"""From the signature of a function to the format of its arguments: what a model has to send, and the values to call it with."""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import attrs

from ._answer_format import AnswerFormat
from ._result_types import _made, _of_pydantic, _with_members, answer_format, embed_schema, import_msgspec

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
_UNKNOWN = ("Predicate", "Timezone")
_MISSING = inspect.Parameter.empty


@attrs.frozen(kw_only=True)
class Argument:
    """One argument of a function.

    Attributes:
        type: The annotation, with its metadata.
        default: What it is without a value; `inspect.Parameter.empty` if it needs one.
        description: For the model; may be empty.
    """

    type: Any
    default: Any = _MISSING
    description: str = ""


def arguments_format(name: str, arguments: Mapping[str, Argument]) -> AnswerFormat[dict[str, Any]]:
    """The format of the arguments of a function; it reads a JSON object into a dict of keywords, without those that were not given.

    Raises:
        TypeError: A type has no JSON Schema; the message names the argument.
        MissingExtraError: The packages that typed functions take are not installed.
    """
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    members: dict[str, AnswerFormat[Any]] = {}
    for number, (key, argument) in enumerate(arguments.items()):
        try:
            member = (
                _of_pydantic(argument.type) if _has_field(argument.type) else answer_format(_for_msgspec(argument.type))
            )
        except TypeError as error:
            raise TypeError(f"argument {key!r}: {error}".replace("result_type ", "the type ")) from error
        schema = embed_schema(member, definitions, number)
        schema.pop("title", None)
        if description := argument.description or _description_in(argument.type):
            schema["description"] = description
        if argument.default is not _MISSING:
            schema.update(_written_default(argument.default))
        properties[key], members[key] = schema, member
    required = [key for key, argument in arguments.items() if argument.default is _MISSING]
    whole = {"type": "object", "properties": properties, **({"required": required} if required else {})}

    def convert(given: Any) -> dict[str, Any]:
        return {key: members[key].convert(value, f"$.{key}") for key, value in given.items()}

    return _made(name, {**whole, **({"$defs": definitions} if definitions else {})}, convert)


def _has_field(kind: Any) -> bool:
    """Whether pydantic's ``Field`` is in the metadata of the type."""
    metadata = getattr(kind, "__metadata__", ())
    return any(type(item).__module__.startswith("pydantic") for item in metadata) or any(
        map(_has_field, typing.get_args(kind) if not metadata else typing.get_args(kind)[:1])
    )


def _for_msgspec(kind: Any) -> Any:
    """The type with constraints in msgspec's form, at every depth; constraints of annotated-types and plain texts are understood."""
    msgspec = import_msgspec("a function as a tool")
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        base, metadata = _for_msgspec(members[0]), []
        for item in members[1:]:
            if isinstance(item, msgspec.Meta):
                metadata.append(item)
            elif isinstance(item, str):
                metadata.append(msgspec.Meta(description=item))
            else:
                found = {key: getattr(item, key) for key in _CONSTRAINTS if getattr(item, key, None) is not None}
                metadata += [msgspec.Meta(**found)] if found else []
                if not found and type(item).__name__ in _UNKNOWN:
                    raise TypeError(f"the constraint {item!r:.80} has no JSON Schema; check it in the function")
        if metadata and typing.get_origin(base) in (typing.Union, types.UnionType):
            each = [m if m is type(None) else Annotated[(m, *metadata)] for m in typing.get_args(base)]
            return functools.reduce(operator.or_, each)
        return Annotated[(base, *metadata)] if metadata else base
    return _with_members(kind, _for_msgspec)


def _description_in(kind: Any) -> str:
    """The text in ``Annotated[int, "what it is"]``."""
    metadata = getattr(kind, "__metadata__", ())
    texts = [*metadata, *(getattr(item, "documentation", None) for item in metadata)]
    return next((text for text in texts if isinstance(text, str)), "")


def _written_default(value: Any) -> dict[str, Any]:
    """The default as JSON Schema shows it; nothing if it has no JSON form."""
    try:
        return {"default": to_json(value)}
    except TypeError:
        return {}


def to_json(value: Any) -> Any:
    """The JSON form of a value: builtin types, attrs classes, dataclasses, models of pydantic and of this package, dates, enums.

    Raises:
        TypeError: It has none.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    msgspec = import_msgspec("a function as a tool")
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json_by_method)


def _to_json_by_method(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
