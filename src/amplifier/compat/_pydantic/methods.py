"""The members that make our models look like the published ones, and the classes that get them.

Functions with ``self`` or ``cls`` in front become methods of `Model`, `OpenModel` or `ToolResult` by the table at the end.
Arguments of pydantic's that no published code uses are accepted and do nothing. Members that published modules test for by their
absence (``to_dict``, ``text``, ``content_blocks``) must not appear here.
"""

from __future__ import annotations

import copy
import json
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs

from amplifier._json._values import type_name
from amplifier.errors import ModelError
from amplifier.models import StreamChunk, ToolResult
from amplifier.models._base import Model, OpenModel, declared_fields, is_required

from .dump import Rules, dump, dump_text
from .errors import assign, init, is_called_by_us, validation_error
from .fields import FieldView, default_of, fields_of, published_fields
from .subclasses import notice_subclass, prepare

_MISSING: Final = object()


class _ClassProperty:
    """A property that classes have too."""

    def __init__(self, get: Callable[[type[Model]], Any]) -> None:
        self._get = get

    def __get__(self, instance: object, owner: type[Model]) -> Any:
        return self._get(owner)


# ── out ──────────────────────────────────────────────────────────────────────────────────────────


def model_dump(
    self: Model, *, mode: str = "python", include: Any = None, exclude: Any = None, **options: Any
) -> dict[str, Any]:
    """The model as a dict; ``mode="json"`` for JSON values only."""
    return dump(self, _rules(mode == "json", **options), include, exclude)


def model_dump_json(
    self: Model,
    *,
    indent: int | None = None,
    ensure_ascii: bool = False,
    include: Any = None,
    exclude: Any = None,
    **options: Any,
) -> str:
    """The model as JSON text."""
    return dump_text(self, _rules(True, **options), include, exclude, indent, ensure_ascii=ensure_ascii)


def _rules(
    is_json: bool,
    *,
    by_alias: bool | None = None,
    exclude_unset: bool = False,
    exclude_defaults: bool = False,
    exclude_none: bool = False,
    fallback: Callable[[Any], Any] | None = None,
    **_options: Any,
) -> Rules:
    return Rules(
        is_json=is_json,
        by_alias=bool(by_alias),
        exclude_defaults=exclude_defaults or exclude_unset,
        exclude_none=exclude_none,
        fallback=fallback,
    )


def _pairs(self: Model) -> Iterator[tuple[str, Any]]:
    for field in declared_fields(type(self)):
        value = getattr(self, field.name, _MISSING)
        if value is not _MISSING and (value or field.name != "approval_gates"):
            yield field.name, value
    if isinstance(self, OpenModel):
        yield from self.extra.items()


@reprlib.recursive_repr()
def _text(self: Model) -> str:
    return " ".join(f"{name}={value!r}" for name, value in _pairs(self))


@reprlib.recursive_repr()
def _repr(self: Model) -> str:
    return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in _pairs(self))})"


# ── in ───────────────────────────────────────────────────────────────────────────────────────────


def model_validate(cls: type[Model], obj: Any, **_options: Any) -> Model:
    """A model from a mapping; an instance is given back as it is.

    Raises:
        ValueError: It does not fit; pydantic's ValidationError if pydantic is installed.
    """
    if isinstance(obj, cls):
        return obj
    if not isinstance(obj, Mapping) or not all(isinstance(name, str) for name in obj):
        problem = f"expected a dict with str keys or an instance of {cls.__name__}, got {type_name(obj)}"
        raise validation_error(ModelError([("", problem)], subject=cls.__name__))
    return cls(**obj)


def model_validate_json(cls: type[Model], json_data: str | bytes | bytearray, **_options: Any) -> Model:
    """A model from JSON text.

    Raises:
        ValueError: It is not JSON or does not fit; pydantic's ValidationError if pydantic is installed.
    """
    try:
        data = json.loads(json_data)
    except (TypeError, ValueError, RecursionError) as error:
        raise validation_error(ModelError([("", f"Invalid JSON: {error}")], subject=cls.__name__)) from None
    if isinstance(data, Mapping):
        return model_validate(cls, data)
    problem = f"expected a JSON object, got {type_name(data)}"
    raise validation_error(ModelError([("", problem)], subject=cls.__name__))


def model_construct(cls: type[Model], _fields_set: set[str] | None = None, **values: Any) -> Model:
    """A model without any checks; required fields may be missing."""
    prepare(cls)
    made = cls.__new__(cls)
    for field in declared_fields(cls):
        if field.name in values:
            object.__setattr__(made, field.name, values.pop(field.name))
        elif not is_required(field):
            object.__setattr__(made, field.name, default_of(field))
    for attribute in attrs.fields(cls):
        if not attribute.init:
            object.__setattr__(made, attribute.name, attribute.default)
    if issubclass(cls, OpenModel):
        object.__setattr__(made, "extra", values)
    return made


def model_copy(self: Model, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Model:
    """Another model with the same values, and some new ones that are not checked.

    Args:
        update: By name. Names that are not declared become unknown members where the model keeps those; others drop them.
        deep: Copy the values too instead of sharing them.
    """
    cls = type(self)
    made = cls.__new__(cls)
    for attribute in attrs.fields(cls):
        value = getattr(self, attribute.name, _MISSING)
        if value is not _MISSING:
            object.__setattr__(made, attribute.name, copy.deepcopy(value) if deep else value)
    if isinstance(made, OpenModel):
        object.__setattr__(made, "extra", dict(made.extra))
    declared = {field.name for field in declared_fields(cls)}
    for name, value in (update or {}).items():
        if name in declared:
            object.__setattr__(made, name, value)
        elif isinstance(made, OpenModel):
            made.extra[name] = value
    return made


def checked_copy(self: Model, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Model:
    """Another result, built anew, so that no copy holds content that a new one could not hold."""
    return model_validate(type(self), {**model_dump(self), **(update or {})})


_serialized: Final = ToolResult.get_serialized_output


def get_serialized_output(self: ToolResult) -> str:
    """The output as the model should read it.

    Raises:
        TypeError: Third-party code calls it, and the output cannot be written as JSON; loops catch it and report it to the model.
    """
    if isinstance(self.output, (dict, list)) and not is_called_by_us(sys._getframe(1)):
        json.dumps(self.output, default=json_default)
    return _serialized(self)


def json_default(obj: Any) -> str:
    """What ``json.dumps`` is to make of a value it does not know.

    Raises:
        TypeError: Not even we know it.
    """
    if isinstance(obj, Decimal):
        return str(obj)
    raise TypeError(f"Object of type {type(obj).__name__} is not JSON serializable")


# ── unknown members as attributes ────────────────────────────────────────────────────────────────

_declared_names: Final[WeakKeyDictionary[type, frozenset[str]]] = WeakKeyDictionary()


def _names_of(cls: type[Model]) -> frozenset[str]:
    names = _declared_names.get(cls)
    if names is None:
        names = _declared_names[cls] = frozenset(attribute.name for attribute in attrs.fields(cls))
    return names


def _get_unknown(self: OpenModel, name: str) -> Any:
    # An instance that is being copied or unpickled has no members yet, not even `extra`.
    if name != "extra" and not name.startswith("__") and name in self.extra:
        return self.extra[name]
    raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


def _set_any(self: OpenModel, name: str, value: Any) -> None:
    cls = type(self)
    if name in _names_of(cls) or name.startswith("_") or hasattr(cls, name):
        object.__setattr__(self, name, value)
    else:
        self.extra[name] = value


def _delete_any(self: OpenModel, name: str) -> None:
    if name not in _names_of(type(self)) and name in self.extra:
        del self.extra[name]
    else:
        object.__delattr__(self, name)


# ── pieces of a streamed answer ──────────────────────────────────────────────────────────────────


def get_piece(self: StreamChunk, key: str, default: Any = None) -> Any:
    """A member of a chunk, as published loops read one: they take it for a dict, whose ``content`` is new text of the answer."""
    value = getattr(self, key, None) if key != "content" else self.text if self.block_type in (None, "text") else None
    return default if value is None else value


# ── about ────────────────────────────────────────────────────────────────────────────────────────


def _model_extra(self: Model) -> dict[str, Any] | None:
    return self.extra if isinstance(self, OpenModel) else None


def _model_fields_set(self: Model) -> set[str]:
    """The fields that differ from their default, since what was passed is not recorded."""
    return set(model_dump(self, exclude_defaults=True))


def _fields_as_dict(self: Model) -> dict[str, Any]:
    """The declared fields, for ``vars()``; a copy, since the fields are in slots."""
    fields = (field.name for field in published_fields(type(self)))
    return {name: getattr(self, name) for name in fields if hasattr(self, name)}


def _model_config(cls: type[Model]) -> dict[str, Any]:
    return {"extra": "allow"} if issubclass(cls, OpenModel) else {}


def _model_fields(cls: type[Model]) -> dict[str, FieldView]:
    return fields_of(cls)


def _no_computed_fields(cls: type[Model]) -> dict[str, Any]:
    return {}


def model_rebuild(cls: type[Model], **_options: Any) -> None:
    """Nothing to do: types are resolved when they are first needed."""


def core_schema(cls: type[Model], _source: Any, _handler: Any) -> Any:
    """Let a pydantic model have one of ours as a field."""
    from pydantic_core import core_schema as schemas  # noqa: PLC0415 — only pydantic calls this

    written = schemas.plain_serializer_function_ser_schema(_written_for_pydantic, info_arg=True)
    return schemas.no_info_plain_validator_function(
        cls.model_validate,  # type: ignore[attr-defined]  # attached with this
        ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",  # the form of pydantic's own: it names the definition
        serialization=written,
    )


def _written_for_pydantic(value: Any, info: Any) -> Any:
    return model_dump(value, mode=info.mode, exclude_none=info.exclude_none) if isinstance(value, Model) else value


def _members(functions: Iterable[Callable[..., Any]], wrap: Callable[[Any], Any] = lambda function: function) -> Any:
    return {function.__name__: wrap(function) for function in functions}


FACE: Final[dict[type, dict[str, Any]]] = {
    Model: {
        **_members((model_dump, model_dump_json, model_copy)),
        **_members((model_validate, model_validate_json, model_construct, model_rebuild), classmethod),
        "model_extra": property(_model_extra),
        "model_fields_set": property(_model_fields_set),
        "model_config": _ClassProperty(_model_config),
        "model_fields": _ClassProperty(_model_fields),
        "model_computed_fields": _ClassProperty(_no_computed_fields),
        "_reports_misspellings": False,  # the published models do not
        "__init__": init,
        "__init_subclass__": classmethod(notice_subclass),
        "__get_pydantic_core_schema__": classmethod(core_schema),
        "__vars__": _fields_as_dict,
        "__iter__": _pairs,
        "__str__": _text,
        "__repr__": _repr,
    },
    OpenModel: {"__getattr__": _get_unknown, "__setattr__": _set_any, "__delattr__": _delete_any},
    StreamChunk: {"get": get_piece},
    ToolResult: {"__setattr__": assign, "model_copy": checked_copy, "get_serialized_output": get_serialized_output},
}


# ── putting the face on our base classes, and taking it off again with nothing left behind ──

_before: Final[list[tuple[type, str, Any]]] = []


def attach() -> None:
    """Give our models the published form."""
    for cls, members in FACE.items():
        for name, member in members.items():
            _replace(cls, name, member)
    for cls in _below(Model):  # attrs has given each a repr of its own
        if "__attrs_attrs__" in cls.__dict__ and "__repr__" in cls.__dict__:
            _replace(cls, "__repr__", FACE[Model]["__repr__"])


def _replace(cls: type, name: str, member: Any) -> None:
    _before.append((cls, name, cls.__dict__.get(name, _MISSING)))
    setattr(cls, name, member)


def _below(cls: type[Model]) -> list[type[Model]]:
    return [below for child in cls.__subclasses__() for below in (child, *_below(child))]


def detach() -> None:
    """Take the published form away."""
    while _before:
        cls, name, member = _before.pop()
        if member is _MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, member)
