"""The published form of our models: what published modules use of pydantic, attached to our classes while compat is installed.

Without `attach` our classes have none of it. pydantic itself is not needed; where it is installed, third-party code that builds a model
gets its error. Members that published modules test for by their absence (``to_dict``, ``text``, ``content_blocks``) must not appear here.
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
_OURS: Final = "approval_gates"
"""A field of `HookResult` that the published one does not have; shown only while it holds something."""


# ── out ──────────────────────────────────────────────────────────────────────────────────────────


def model_dump(
    self: Model, *, mode: str = "python", by_alias: bool = False, exclude_none: bool = False
) -> dict[str, Any]:
    """The model as a dict: declared fields in order, None included, then unknown members; ``mode="json"`` for JSON values only.

    Raises:
        ValueError: In JSON form, something in it is not JSON; or it contains itself.
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
    """The model as JSON text.

    Raises:
        ValueError: Something in it is not JSON, or it contains itself.
    """
    text = _json_text(model_dump(self, by_alias=by_alias, exclude_none=exclude_none))
    return (
        text if indent is None else json.dumps(json.loads(text), indent=indent, ensure_ascii=False)
    )


def _dumped_model(self: Model, by_alias: bool, without_none: bool) -> dict[str, Any]:
    dumped: dict[str, Any] = {}
    for name, value in _pairs(self):
        is_content = name == "content" and isinstance(self, ToolResult)
        if (value is None and without_none) or (is_content and not value):
            continue
        is_schema = (
            by_alias and name == "json_schema" and isinstance(self, ResponseFormatJsonSchema)
        )
        # Costs are text in both forms: loops put the dump into events.
        is_cost = name == "cost_usd" and isinstance(value, Decimal)
        shown = str(value) if is_cost else _dumped(value, by_alias, without_none or is_content)
        dumped["schema" if is_schema else name] = shown
    return self._in_order(dumped)


def _dumped(value: Any, by_alias: bool, without_none: bool) -> Any:
    """Containers are copied, models and dataclasses become dicts, and everything else is passed through."""
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
    except orjson.JSONEncodeError:  # also for an int over 64 bits, which json writes
        try:
            text = json.dumps(dumped, default=_json_leaf, ensure_ascii=False, separators=(",", ":"))
            text.encode()
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError(f"Unable to serialize: {error}") from None
        return text


def _json_leaf(value: Any) -> Any:
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
        if value is not _ABSENT and (value or name != _OURS):
            yield name, value
    if isinstance(self, OpenModel):
        yield from ((name, value) for name, value in self.extra.items() if name not in names)


@reprlib.recursive_repr()
def _text(self: Model) -> str:
    return " ".join(f"{name}={value!r}" for name, value in _pairs(self))


@reprlib.recursive_repr()
def _repr(self: Model) -> str:
    return (
        f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in _pairs(self))})"
    )


# ── in ───────────────────────────────────────────────────────────────────────────────────────────


def model_validate(cls: type[Model], obj: Any) -> Model:
    """A model from a mapping; an instance is given back as it is.

    Raises:
        ValueError: It does not fit; pydantic's ValidationError if pydantic is installed.
    """
    if isinstance(obj, cls):
        return obj
    if not isinstance(obj, Mapping) or not all(isinstance(name, str) for name in obj):
        problem = f"expected a dict with str keys or an instance of {cls.__name__}, got {type(obj).__name__}"
        raise _validation_error(ModelError([("", problem)], subject=cls.__name__))
    return cls(**obj)


def model_validate_json(cls: type[Model], json_data: str | bytes | bytearray) -> Model:
    """A model from JSON text.

    Raises:
        ValueError: It is not JSON or does not fit; pydantic's ValidationError if pydantic is installed.
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
    """Another model with the same values, and some new ones that are not checked.

    Args:
        update: By name. Names that are not declared become unknown members where the model keeps those; others drop them.
        deep: Copy the values too instead of sharing them.
    """
    cls = type(self)
    made = cls.__new__(cls)
    for attribute in attrs.fields(cls):
        value = getattr(self, attribute.name, _ABSENT)
        if value is not _ABSENT:
            object.__setattr__(made, attribute.name, copy.deepcopy(value) if deep else value)
    if isinstance(made, OpenModel):
        made.extra = dict(made.extra)
    declared = {field.name for field in declared_fields(cls)}
    for name, value in (update or {}).items():
        if name in declared:
            object.__setattr__(made, name, value)
        elif isinstance(made, OpenModel):
            made.extra[name] = value
    return made


# ── errors: pydantic's own cannot be inherited from, and our code catches `ModelError`, so the caller decides ──

_native_init: Final = Model.__init__


def _init(self: Model, /, *positional: Any, **keywords: Any) -> None:
    try:
        _native_init(self, *positional, **keywords)
    except ModelError as error:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        is_ours = caller.startswith("amplifier.") and not caller.startswith("amplifier.compat.")
        raise (error if is_ours else _validation_error(error)) from None


def _validation_error(error: ModelError) -> ValueError:
    """Pydantic's form of one of our errors, or the error itself where pydantic is not installed."""
    try:
        from pydantic_core import PydanticCustomError, ValidationError  # noqa: PLC0415 — not a dependency of ours
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


# ── subclasses of annotations and nothing else, as published providers write them ────────────────

_lock: Final = threading.RLock()


def _notice_subclass(cls: type[Model], /) -> None:
    """Have a bare subclass made into a model when it is first used.

    Not when it is defined: a class with our decorator is defined first and decorated a moment later.
    """
    super(Model, cls).__init_subclass__()
    if _is_bare(cls):
        cls._before_first_use = classmethod(_prepare)  # type: ignore[assignment]  # it takes the class, as declared


def _is_bare(cls: type[Model]) -> bool:
    """Whether neither attrs has made the class nor a constructor of its own knows its fields."""
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
        if not has_own_repr:
            del cls.__repr__  # the inherited one is the published one
        for function in (__getstate__, __setstate__):
            setattr(cls, function.__name__, function)


def __getstate__(self: Any) -> dict[str, Any]:
    slots = {
        field.name: getattr(self, field.name)
        for field in attrs.fields(type(self))
        if hasattr(self, field.name)
    }
    return {**slots, **vars(self)}


def __setstate__(self: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(self, name, value)


# ── about ────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _FieldView:
    """One field as pydantic describes it, of which published code reads this much.

    Attributes:
        annotation: The resolved type.
        default: The default; ``...`` for a required field.
    """

    annotation: Any
    default: Any

    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is ...


class _ModelFields:
    """The declared fields by name, read from the class or from an instance."""

    def __get__(self, instance: object, owner: type[Model]) -> dict[str, _FieldView]:
        fields = (
            field
            for field in declared_fields(owner)
            if field.name != _OURS or not issubclass(owner, HookResult)
        )
        return {
            field.name: _FieldView(field.type, ... if is_required(field) else _default(field))
            for field in fields
        }


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


# ── putting it on our classes, and taking it off again with nothing left behind ──────────────────

_FACE: Final[dict[type, dict[str, Any]]] = {
    Model: {
        "model_dump": model_dump,
        "model_dump_json": model_dump_json,
        "model_copy": model_copy,
        "model_validate": classmethod(model_validate),
        "model_validate_json": classmethod(model_validate_json),
        "model_fields": _ModelFields(),
        "_reports_misspellings": False,  # the published models do not
        "__init__": _init,
        "__init_subclass__": classmethod(_notice_subclass),
        "__str__": _text,
        "__repr__": _repr,
    },
    OpenModel: {"__getattr__": _get_unknown, "__setattr__": _set_any, "__delattr__": _delete_any},
}

_before: Final[list[tuple[type, str, Any]]] = []


def attach() -> None:
    """Give our models the published form."""
    for cls, members in _FACE.items():
        for name, member in members.items():
            _replace(cls, name, member)
    for cls in _below(Model):  # attrs has given each a repr of its own
        if "__attrs_attrs__" in vars(cls) and "__repr__" in vars(cls):
            _replace(cls, "__repr__", _repr)


def _replace(cls: type, name: str, member: Any) -> None:
    _before.append((cls, name, vars(cls).get(name, _ABSENT)))
    setattr(cls, name, member)


def _below(cls: type[Model]) -> list[type[Model]]:
    return [below for child in cls.__subclasses__() for below in (child, *_below(child))]


def detach() -> None:
    """Take the published form away."""
    while _before:
        cls, name, member = _before.pop()
        if member is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, member)
