"""The part of pydantic's API that published modules use, for our models while compat is installed.

pydantic itself isn't needed. If it is installed, third-party code that builds a model gets its
error.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re
import reprlib
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

import attrs
import orjson

from amplifier.errors import ModelError
from amplifier.models import HookResult, ResponseFormatJsonSchema, ToolResult
from amplifier.models.base import Model, OpenModel, model
from amplifier.models.fields import declared_fields, is_required, per_class

__all__ = ["attach", "detach"]

_ABSENT: Final = object()
_ATOMS: Final = frozenset({str, int, bool, float, type(None)})
_UNPUBLISHED_FIELD: Final = "approval_gates"
"""A field that the published `HookResult` lacks. It is shown only if it isn't empty."""

# Published modules test for some members by their absence, so ``to_dict``, ``text`` and
# ``content_blocks`` must not appear here.


# ── out ──────────────────────────────────────────────────────────────────────────────────────────


def model_dump(
    self: Model, *, mode: str = "python", by_alias: bool = False, exclude_none: bool = False
) -> dict[str, Any]:
    """Return the model as a dict of its declared fields in order, then its unknown members.

    ``mode="json"`` gives JSON values only.

    Raises:
        ValueError: It contains itself, or it can't be written as JSON in that mode.
    """
    try:
        dumped = _dumped_model(self, by_alias, exclude_none)
    except RecursionError:
        raise ValueError("Circular reference detected (id repeated)") from None
    plain: dict[str, Any] = json.loads(_json_text(dumped)) if mode == "json" else dumped
    return plain


def model_dump_json(
    self: Model, *, indent: int | None = None, by_alias: bool = False, exclude_none: bool = False
) -> str:
    """Return the model as JSON text.

    Raises:
        ValueError: It contains itself, or it can't be written as JSON.
    """
    text = _json_text(model_dump(self, by_alias=by_alias, exclude_none=exclude_none))
    if indent is None:
        return text
    return json.dumps(json.loads(text), indent=indent, ensure_ascii=False)


def _dumped_model(self: Model, by_alias: bool, without_none: bool) -> dict[str, Any]:
    dumped: dict[str, Any] = {}
    for name, value in _pairs(self):
        is_content = name == "content" and isinstance(self, ToolResult)
        if (value is None and without_none) or (is_content and not value):
            continue
        is_schema = (
            by_alias and name == "json_schema" and isinstance(self, ResponseFormatJsonSchema)
        )
        # Costs are text in both modes, because loops put the dump into events.
        is_cost = name == "cost_usd" and isinstance(value, Decimal)
        shown = str(value) if is_cost else _dumped(value, by_alias, without_none or is_content)
        dumped["schema" if is_schema else name] = shown
    return self._in_order(dumped)


def _dumped(value: Any, by_alias: bool, without_none: bool) -> Any:
    """Copy containers, convert models and dataclasses to dicts, and share all other values."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Model):
        return _dumped_model(value, by_alias, without_none)
    if isinstance(value, dict):
        return {key: _dumped(member, by_alias, without_none) for key, member in value.items()}
    if isinstance(value, list | tuple):
        members = [_dumped(member, by_alias, without_none) for member in value]
        return members if isinstance(value, list) else tuple(members)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _dumped(fields, by_alias, without_none)
    if hasattr(type(value), "__pydantic_serializer__"):
        return value.model_dump(by_alias=by_alias, exclude_none=without_none)
    return value


def _json_text(dumped: dict[str, Any]) -> str:
    try:
        return orjson.dumps(dumped, _json_leaf, orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z).decode()
    # It is raised even for an int over 64 bits, which json writes.
    except orjson.JSONEncodeError:
        try:
            text = json.dumps(dumped, default=_json_leaf, ensure_ascii=False, separators=(",", ":"))
            text.encode()
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError(f"Unable to serialize: {error}") from None
        return text


def _json_leaf(value: object) -> object:
    if isinstance(value, Decimal | PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return value.decode()
    if isinstance(value, set | frozenset | deque):
        return list(value)
    raise TypeError(f"unknown type: {type(value)}")


def _pairs(self: Model) -> Iterator[tuple[str, Any]]:
    names = [field.name for field in declared_fields(type(self))]
    for name in names:
        value = getattr(self, name, _ABSENT)
        if value is not _ABSENT and (value or name != _UNPUBLISHED_FIELD):
            yield name, value
    if isinstance(self, OpenModel):
        yield from ((name, value) for name, value in self.extra.items() if name not in names)


@reprlib.recursive_repr()
def _text(self: Model) -> str:
    return " ".join(f"{name}={value!r}" for name, value in _pairs(self))


@reprlib.recursive_repr()
def _repr(self: Model) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in _pairs(self))
    return f"{type(self).__name__}({fields})"


# ── in ───────────────────────────────────────────────────────────────────────────────────────────


def model_validate(cls: type[Model], obj: object) -> Model:
    """Return a model from a mapping. An instance is returned unchanged.

    Raises:
        ValueError: The mapping doesn't fit. The error is pydantic's ValidationError if that is
            installed.
    """
    if isinstance(obj, cls):
        return obj
    if not isinstance(obj, Mapping) or not all(isinstance(name, str) for name in obj):
        expected = f"expected a dict with str keys or an instance of {cls.__name__}"
        problem = f"{expected}, got {type(obj).__name__}"
        raise _validation_error(ModelError([("", problem)], subject=cls.__name__))
    return cls(**obj)


def model_validate_json(cls: type[Model], json_data: str | bytes | bytearray) -> Model:
    """Return a model from JSON text.

    Raises:
        ValueError: The text isn't JSON or doesn't fit. The error is pydantic's ValidationError if
            that is installed.
    """
    try:
        data = json.loads(json_data)
    except (ValueError, RecursionError) as error:
        raise _validation_error(
            ModelError([("", f"Invalid JSON: {error}")], subject=cls.__name__)
        ) from None
    return model_validate(cls, data)


def model_copy(
    self: Model, *, update: Mapping[str, Any] | None = None, deep: bool = False
) -> Model:
    """Return another model with the same values, except for updates, which aren't checked.

    Args:
        update: New values by name. An undeclared name becomes an unknown member, or is dropped if
            the model keeps none.
        deep: True copies the values instead of sharing them.
    """
    cls = type(self)
    result = cls.__new__(cls)
    for attribute in attrs.fields(cls):
        value = getattr(self, attribute.name, _ABSENT)
        if value is not _ABSENT:
            object.__setattr__(result, attribute.name, copy.deepcopy(value) if deep else value)
    if isinstance(result, OpenModel):
        result.extra = dict(result.extra)
    declared = {field.name for field in declared_fields(cls)}
    for name, value in (update or {}).items():
        if name in declared:
            object.__setattr__(result, name, value)
        elif isinstance(result, OpenModel):
            result.extra[name] = value
    return result


# ── errors ───────────────────────────────────────────────────────────────────────────────────────
# pydantic's error can't be inherited from, and our code catches `ModelError`. So the caller decides
# on the class.

_native_init: Final = Model.__init__


def _init(self: Model, /, *positional: object, **keywords: object) -> None:
    try:
        _native_init(self, *positional, **keywords)
    except ModelError as error:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        is_ours = caller.startswith("amplifier.") and not caller.startswith("amplifier.compat.")
        raise (error if is_ours else _validation_error(error)) from None


def _validation_error(error: ModelError) -> ValueError:
    """Return pydantic's form of one of our errors, or the error itself without pydantic."""
    try:
        from pydantic_core import PydanticCustomError, ValidationError  # noqa: PLC0415
    except ImportError:
        return error
    details: list[Any] = []
    for path, problem in error.problems:
        kind: Any = PydanticCustomError(
            "value_error", "Value error, {problem}", {"problem": problem}
        )
        location = tuple(
            int(index) if index else name
            for index, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path)
        )
        details.append(
            {
                "type": "missing" if problem.startswith("required") else kind,
                "loc": location,
                "input": None,
            }
        )
    return ValidationError.from_exception_data(error.subject, details, hide_input=True)


# ── unknown members as attributes ────────────────────────────────────────────────────────────────


def _get_unknown(self: OpenModel, name: str) -> Any:
    # An instance that is being copied or unpickled has no members yet, not even `extra`.
    if name != "extra" and not name.startswith("__") and name in self.extra:
        return self.extra[name]
    raise AttributeError(
        f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
    )


@per_class
def _names_of(cls: type[Model]) -> frozenset[str]:
    return frozenset(attribute.name for attribute in attrs.fields(cls))


def _set_any(self: OpenModel, name: str, value: object) -> None:
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


# ── subclasses with annotations only, as published providers write them ──────────────────────────

_lock: Final = threading.RLock()


def _notice_subclass(cls: type[Model], /) -> None:
    """Let a bare subclass become a model at its first use.

    This isn't possible at its definition, because our decorator is applied after that.
    """
    super(Model, cls).__init_subclass__()
    if _is_bare(cls):
        cls._before_first_use = classmethod(_prepare)  # type: ignore[assignment]


def _is_bare(cls: type[Model]) -> bool:
    """Return whether the class is neither made by attrs nor has a constructor."""
    return cls is not Model and "__attrs_attrs__" not in vars(cls) and "__init__" not in vars(cls)


def _prepare(cls: type[Model]) -> None:
    with _lock:
        if not _is_bare(cls):
            return
        for base in cls.__mro__[1:]:
            if issubclass(base, Model):
                _prepare(base)
        own = inspect.get_annotations(cls).items()
        cls.__annotations__ = {
            name: kind for name, kind in own if not name.startswith("_") and name != "model_config"
        }
        has_own_repr = "__repr__" in vars(cls)
        model(slots=False)(cls)
        # The inherited constructor is the published one.
        if not has_own_repr:
            del cls.__repr__
        for function in (__getstate__, __setstate__):
            setattr(cls, function.__name__, function)


def __getstate__(self: Model) -> dict[str, Any]:
    slots = {
        field.name: getattr(self, field.name)
        for field in attrs.fields(type(self))
        if hasattr(self, field.name)
    }
    return {**slots, **vars(self)}


def __setstate__(self: Model, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(self, name, value)


# ── descriptions ─────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _FieldView:
    """The part of pydantic's description of a field that published code reads.

    Attributes:
        annotation: The resolved type.
        default: The default value. ``...`` for a required field.
    """

    annotation: Any
    default: Any

    def is_required(self) -> bool:
        """Return whether the field has no default."""
        return self.default is ...


class _ModelFields:
    """The declared fields by name, read from the class or from an instance."""

    def __get__(self, instance: object, owner: type[Model]) -> dict[str, _FieldView]:
        fields = (
            field
            for field in declared_fields(owner)
            if field.name != _UNPUBLISHED_FIELD or not issubclass(owner, HookResult)
        )
        return {
            field.name: _FieldView(field.type, ... if is_required(field) else _default(field))
            for field in fields
        }


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


# ── attaching to our classes ─────────────────────────────────────────────────────────────────────

_MEMBERS: Final[dict[type, dict[str, object]]] = {
    Model: {
        "model_dump": model_dump,
        "model_dump_json": model_dump_json,
        "model_copy": model_copy,
        "model_validate": classmethod(model_validate),
        "model_validate_json": classmethod(model_validate_json),
        "model_fields": _ModelFields(),
        # The published models don't do this.
        "_reports_misspellings": False,
        "__init__": _init,
        "__init_subclass__": classmethod(_notice_subclass),
        "__str__": _text,
        "__repr__": _repr,
    },
    OpenModel: {"__getattr__": _get_unknown, "__setattr__": _set_any, "__delattr__": _delete_any},
}

_replaced: Final[list[tuple[type, str, object]]] = []


def attach() -> None:
    """Give our models the published form."""
    for cls, members in _MEMBERS.items():
        for name, member in members.items():
            _replace(cls, name, member)
    # Attrs has written a repr for each of them.
    for cls in _subclasses(Model):
        if "__attrs_attrs__" in vars(cls) and "__repr__" in vars(cls):
            _replace(cls, "__repr__", _repr)


def _replace(cls: type, name: str, member: object) -> None:
    _replaced.append((cls, name, vars(cls).get(name, _ABSENT)))
    setattr(cls, name, member)


def _subclasses(cls: type[Model]) -> list[type[Model]]:
    return [below for child in cls.__subclasses__() for below in (child, *_subclasses(child))]


def detach() -> None:
    """Remove the published form completely."""
    while _replaced:
        cls, name, member = _replaced.pop()
        if member is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, member)
