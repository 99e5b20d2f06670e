"""Generates the `__init__` of a model class when the class is first instantiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from .base import EXTRA_ALIAS, FRESH, REQUIRED, Coercion, FieldType, Model, ModelField, OpenModel, Sentinel
from .field_types import (
    BoolType,
    CheckedType,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    ModelType,
    OptionalType,
    StrType,
    UnionType,
)
from .generated_code import compile_function, default_lines, store_line
from .unknown_keywords import warn_about_misspelt

_EXACT: dict[type[FieldType], str] = {StrType: "str", IntType: "int", FloatType: "float", BoolType: "bool"}
_NONE_GIVEN: Any = Sentinel("<none>")


def lazy_init(cls: type[Model]) -> Callable[..., None]:
    """An `__init__` that replaces itself by the generated one on its first call."""

    def __init__(self: Model, /, *positional: Any, **keywords: Any) -> None:
        generated = cls.__init__ = _generate_init(cls)  # type: ignore[method-assign]
        generated(self, *positional, **keywords)

    return __init__


def _generate_init(cls: type[Model]) -> Callable[..., None]:
    """Write `__init__` for one class.

    The common case of each field is one inline test; all else goes to the field's type. Written out because it is on
    the path of every hook dispatch: a loop over the fields costs ten times as much. For the same reason the
    parameters are not declared keyword-only (Python looks such defaults up one by one, which is a third of the cost of
    an empty HookResult): a positional-only guard in front of them catches positional use instead. A second parameter behind
    that guard is `_coercion`, which no caller can pass: its default costs less than an assignment.
    """
    fields = cls.__model_fields_of__
    names: dict[str, Any] = {"_Coercion": Coercion, "_REQUIRED": REQUIRED, "_FRESH": FRESH, "_cls": cls}
    names |= {"_coerce": _coerce_field, "_NONE_GIVEN": _NONE_GIVEN, "_refuse_positional": _refuse_positional}
    names["_warn_about_misspelt"] = warn_about_misspelt
    parameters: list[str] = []
    body = ["if _positional is not _NONE_GIVEN:", "    _refuse_positional(_cls)"]
    body += ["if _unknown:", "    _warn_about_misspelt(_cls, _unknown)"]
    for index, field in enumerate(fields):
        names[f"_type{index}"], names[f"_default{index}"] = field.type, field.default
        default = "_FRESH" if field.factory is not None else f"_default{index}"
        parameters.append(f"{field.name}={default}")
        body += _coercion_lines(index, field, names)
    body += ["if _coercion is not None:", "    _coercion.finish(_cls.__name__)"]
    body += [store_line(cls, field.name, field.name, names) for field in fields]
    body += default_lines(cls, names)
    if issubclass(cls, OpenModel):
        body += [
            f"if _unknown and {EXTRA_ALIAS!r} in _unknown:",
            f"    _unknown = {{**_unknown.pop({EXTRA_ALIAS!r}), **_unknown}}",
            store_line(cls, "extra", "_unknown", names),
        ]
    if hasattr(cls, "__attrs_post_init__"):
        body.append("self.__attrs_post_init__()")
    listed = ", ".join([*parameters, "**_unknown"])
    return compile_function(f"__init__(self, _positional=_NONE_GIVEN, _coercion=None, /, {listed})", body, names, cls)


def _refuse_positional(cls: type[Model]) -> NoReturn:
    first = cls.__model_fields_of__[0].name if cls.__model_fields_of__ else "name"
    raise TypeError(f"{cls.__name__} takes keyword arguments only, for example {cls.__name__}({first}=...)")


def _coercion_lines(index: int, field: ModelField, names: dict[str, Any]) -> list[str]:
    """Lines that coerce one parameter."""
    name, field_type, lines = field.name, field.type, []
    keyword = "if"
    if field.factory is not None:
        names[f"_factory{index}"] = field.factory
        made = "[]" if field.factory is list else "{}" if field.factory is dict else f"_factory{index}()"
        lines += [f"if {name} is _FRESH:", f"    {name} = {made}"]
        keyword = "elif"
    if isinstance(field_type, OptionalType):
        field_type = field_type.inner
        lines += [f"{keyword} {name} is None:", "    pass"]
        keyword = "elif"
    if isinstance(field_type, (DictType, ListType)) and type(field_type.inner) is FieldType:
        kind = "dict" if isinstance(field_type, DictType) else "list"
        lines += [f"{keyword} {name}.__class__ is {kind}:", f"    {name} = {name}.copy()"]
        keyword = "elif"
    test = _unchanged_test(index, field, field_type, names)
    return [
        *lines,
        f"{keyword} not ({test}):" if test else f"{keyword} True:",
        "    if _coercion is None:",
        "        _coercion = _Coercion()",
        f"    {name} = _coerce(_coercion, {name!r}, _type{index}, {name})",
    ]


def _unchanged_test(index: int, field: ModelField, field_type: FieldType, names: dict[str, Any]) -> str:
    """The source of the test whether a value is stored without a call; empty if there is no such test."""
    name, tests = field.name, []
    if field.factory is None and not field.is_required and field.default is not None:
        tests.append(f"{name} is _default{index}")
    if type(field_type) is FieldType:
        tests = [f"{name} is not _REQUIRED"]
    elif type(field_type) in _EXACT:
        tests.append(f"{name}.__class__ is {_EXACT[type(field_type)]}")
    elif isinstance(field_type, UnionType) and type(field_type.options[0]) is StrType:
        tests.append(f"{name}.__class__ is str")
    elif isinstance(field_type, LiteralType):
        names[f"_words{index}"] = field_type.values
        tests.append(f"{name}.__class__ is str and {name} in _words{index}")
    elif isinstance(field_type, ModelType):
        names[f"_model{index}"] = field_type.cls
        tests.append(f"{name}.__class__ is _model{index}")
    elif isinstance(field_type, CheckedType) and not field.is_required:
        tests = [f"{name} is _default{index}"]
    return " or ".join(tests)


def _coerce_field(coercion: Coercion, name: str, field_type: FieldType, value: Any) -> Any:
    if value is REQUIRED:
        return coercion.note((None, name), "required, but missing")
    return field_type.coerce(value, (None, name), coercion)
