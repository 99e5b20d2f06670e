"""Fast readers: one function per class, generated from its fields because a loop over the fields costs four times as much.

A reader accepts exact types only. Anything else raises `Decline`, and the converter calls `strict_reader`, which gives the
same result or a list of problems; tests/models/test_fast.py holds the two equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier.models._definition.base import FieldType, Model, OpenModel
from amplifier.models._definition.field_types import (
    BoolType,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    ModelType,
    OpaqueType,
    OptionalType,
    StrType,
    TaggedUnionType,
    UnionType,
    field_type_of,
    is_understood,
)
from amplifier.models._definition.generated_code import (
    FunctionTable,
    compile_function,
    default_lines,
    indented,
    store_line,
)

from .plain_values import HIGHEST_SURE_FLOAT, LEAVES, LOWEST_SURE_FLOAT, Decline, vet, vetted

_EXACT: dict[type[FieldType], str] = {StrType: "str", IntType: "int", BoolType: "bool"}


def _make_reader(annotation: Any) -> Callable[[Any], Any]:
    field_type = field_type_of(annotation)
    if isinstance(field_type, ModelType):
        return _model_reader(field_type.cls)
    names = _shared_names()
    lines = _read_lines("value", field_type, names) if is_understood(field_type) else ["raise Decline"]
    return compile_function("read(value)", [*lines, "return value"], names, annotation)


READERS = FunctionTable(_make_reader)
"""From a class or type to the function that reads fresh JSON values into it. Values are kept, not copied."""


def _shared_names() -> dict[str, Any]:
    return {
        "Decline": Decline,
        "LEAVES": LEAVES,
        "ONLY_STR": frozenset({str}),
        "readers": READERS,
        "vet": vet,
        "vetted": vetted,
        "read_float": _read_float,
        "read_tagged": _read_tagged,
        "unknown_members": _unknown_members,
    }


def _model_reader(cls: type[Model]) -> Callable[[Any], Any]:
    """Generate the reader of one class: it fills a new instance directly, without `__init__`."""
    fields = cls.__model_fields_of__
    names = _shared_names() | {"new": cls.__new__, "cls": cls, "known": frozenset(field.name for field in fields)}
    if hasattr(cls, "__attrs_post_init__"):
        return compile_function("read(data)", ["raise Decline"], names, cls)
    required = [field for field in fields if field.is_required]
    lines = ["if data.__class__ is not dict:", "    raise Decline", "self = new(cls)", *default_lines(cls, names)]
    if required:
        lines += ["try:", *(f"    field_{field.name} = data[{field.name!r}]" for field in required)]
        lines += ["except KeyError:", "    raise Decline from None"]
    for field in required:
        value = f"field_{field.name}"
        lines += [*_read_lines(value, field.type, names), store_line(cls, field.name, value, names)]
    lines.append(f"left = len(data) - {len(required)}")
    for field in fields:
        if field.is_required:
            continue
        default = _name("default", field.default if field.factory is None else field.factory, names)
        default = default if field.factory is None else f"{default}()"
        lines += [
            f"if left and {field.name!r} in data:",
            "    left -= 1",
            f"    value = data[{field.name!r}]",
            *indented(_read_lines("value", field.type, names)),
            f"    {store_line(cls, field.name, 'value', names)}",
            "else:",
            f"    {store_line(cls, field.name, default, names)}",
        ]
    if issubclass(cls, OpenModel):
        lines.append(store_line(cls, "extra", "unknown_members(data, known) if left else {}", names))
    if cls.__remembers_order__:
        lines.append("self._remember_order(data)")
    return compile_function("read(data)", [*lines, "return self"], names, cls)


def _name(stem: str, value: Any, names: dict[str, Any]) -> str:
    """A new name for a value that generated code refers to."""
    name = f"{stem}_{len(names)}"
    names[name] = value
    return name


def _read_lines(value: str, field_type: FieldType, names: dict[str, Any]) -> list[str]:
    """Lines that test, and where needed replace, the variable called `value`."""
    if isinstance(field_type, OptionalType):
        return [f"if {value} is not None:", *indented(_read_lines(value, field_type.inner, names))]
    if type(field_type) in _EXACT:
        return [f"if {value}.__class__ is not {_EXACT[type(field_type)]}:", "    raise Decline"]
    if isinstance(field_type, LiteralType):
        words = _name("words", field_type.values, names)
        return [f"if {value}.__class__ is not str or {value} not in {words}:", "    raise Decline"]
    if isinstance(field_type, FloatType):
        return [f"{value} = read_float({value})"]
    if isinstance(field_type, ModelType):
        return [f"{value} = readers[{_name('class', field_type.cls, names)}]({value})"]
    if isinstance(field_type, TaggedUnionType):
        return [f"{value} = read_tagged({value}, {_name('union', field_type, names)})"]
    if (
        isinstance(field_type, UnionType)
        and isinstance(field_type.options[0], StrType)
        and len(field_type.options) == 2
    ):
        return [f"if {value}.__class__ is not str:", *indented(_read_lines(value, field_type.options[1], names))]
    if isinstance(field_type, (DictType, ListType)):
        kind = "dict" if isinstance(field_type, DictType) else "list"
        return [f"if {value}.__class__ is not {kind}:", "    raise Decline", *_member_lines(value, field_type, names)]
    if type(field_type) is FieldType or isinstance(field_type, OpaqueType):
        return [f"if {value}.__class__ not in LEAVES:", f"    vetted({value})"]
    return ["raise Decline"]


def _member_lines(value: str, container: DictType | ListType, names: dict[str, Any]) -> list[str]:
    if type(container.inner) is FieldType:
        return [f"vet({value})"]
    if isinstance(container, ListType) and isinstance(container.inner, StrType):
        return [f"if not ONLY_STR.issuperset(map(type, {value})):", "    raise Decline"]
    if isinstance(container, ListType) and isinstance(container.inner, (ModelType, TaggedUnionType)):
        return [  # a loop, because a comprehension is a function call of its own before Python 3.12
            "members = []",
            f"for member in {value}:",
            *indented(_read_lines("member", container.inner, names)),
            "    members.append(member)",
            f"{value} = members",
        ]
    return ["raise Decline"]


def _read_float(value: Any) -> float:
    if value.__class__ is float and LOWEST_SURE_FLOAT < value < HIGHEST_SURE_FLOAT:
        return float(value)
    if value.__class__ is int and -(2**53) < value < 2**53:
        return float(value)
    raise Decline


def _read_tagged(value: Any, union: TaggedUnionType) -> Any:
    tag = value.get("type") if value.__class__ is dict else None
    cls = union.by_tag.get(tag, union.fallback) if tag.__class__ is str else None
    if cls is None:
        raise Decline
    return READERS[cls](value)


def _unknown_members(data: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    unknown = {}
    for name, member in data.items():
        if name not in known:
            unknown[name] = member if member.__class__ in LEAVES else vetted(member)
    return unknown
