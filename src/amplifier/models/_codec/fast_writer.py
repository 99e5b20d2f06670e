"""Fast writers: one function per class, generated from its fields.

The counterpart of `fast_reader`, with the same contract: exact types or `Decline`, and then `plain_values.JsonConversion`
decides. A writer makes plain dicts of the declared structure and leaves free-form values as they are; `encode` then
checks all of those at once, because a test of each of their leaves in Python would double the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson

from amplifier.models._definition.base import FieldType, Model, OpenModel
from amplifier.models._definition.field_types import (
    BoolType,
    CheckedType,
    DatetimeType,
    DecimalType,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    ModelType,
    OptionalType,
    StrType,
    TaggedUnionType,
    UnionType,
)
from amplifier.models._definition.generated_code import FunctionTable, compile_function, indented
from amplifier.models._definition.shared_list import SharedList, shared_members

from .plain_values import (
    HIGHEST_SURE_FLOAT,
    LEAVES,
    LOWEST_SURE_FLOAT,
    STRICTLY,
    Decline,
    is_writable_size,
    may_hide_nan,
    only_word,
    vetted,
)

_EXACT: dict[type[FieldType], str] = {StrType: "str", IntType: "int", BoolType: "bool", LiteralType: "str"}


def encode(model: Model) -> bytes:
    """The JSON text of a model.

    Raises:
        Decline: Something is not of the exact type.
        TypeError: The codec met something it does not write.
    """
    free: list[Any] = []
    plain = _WRITERS[model.__class__](model, free)
    if free:
        if not is_writable_size(free):
            raise Decline
        # Twice through the codec costs a third of looking at every number in Python.
        if may_hide_nan(orjson.dumps(free, None, STRICTLY)):
            for value in free:
                vetted(value)
    return orjson.dumps(plain, None, STRICTLY)


def _make_writer(cls: Any) -> Callable[[Any, list[Any]], dict[str, Any]]:
    """Generate a function of an instance and the list to which it appends the free-form values."""
    if not isinstance(cls, type) or not issubclass(cls, Model):
        raise Decline
    fields = cls.__model_fields_of__
    names: dict[str, Any] = {"Decline": Decline, "LEAVES": LEAVES, "Decimal": Decimal, "datetime": datetime}
    names |= {"lowest": LOWEST_SURE_FLOAT, "highest": HIGHEST_SURE_FLOAT, "writers": _WRITERS}
    names |= {"SharedList": SharedList, "shared_members": shared_members}
    names["known"] = frozenset(field.name for field in fields)
    # The leading fields that are always written go into one dict display; the others follow one by one.
    leading = next((index for index, field in enumerate(fields) if field.is_left_out_when_none), len(fields))
    lines, members = [], []
    for field in fields[:leading]:
        if (word := only_word(field.type)) is not None:
            members.append(f"{field.name!r}: {word!r}")
            continue
        value = f"field_{field.name}"
        members.append(f"{field.name!r}: {value}")
        lines += [f"{value} = model.{field.name}", *_write_lines(value, field.type)]
    lines.append(f"plain = {{{', '.join(members)}}}")
    for field in fields[leading:]:
        store = f"plain[{field.name!r}] = value"
        lines.append(f"value = model.{field.name}")
        if field.is_left_out_when_none:
            present = field.type.inner if isinstance(field.type, OptionalType) else field.type
            lines += ["if value is not None:", *indented([*_write_lines("value", present), store])]
        else:
            lines += [*_write_lines("value", field.type), store]
    if issubclass(cls, OpenModel):
        lines += [
            "if extra := model.extra:",
            "    if extra.__class__ is not dict or not known.isdisjoint(extra):",
            "        raise Decline",
            "    free.append(extra)",
            "    plain.update(extra)",
        ]
    lines.append("return model._in_order(plain)" if cls.__remembers_order__ else "return plain")
    # Names bound as defaults would be found faster, but Python 3.13.0 does not count calls of functions with
    # defaults against its recursion limit: a request among its own messages would fill the memory.
    return compile_function("write(model, free)", lines, names, cls)


_WRITERS = FunctionTable(_make_writer)


def _write_lines(value: str, field_type: FieldType) -> list[str]:
    """Lines that test, and where needed replace, the variable called `value`.

    Where values of several types are usual, the lines test `type`; where one type is expected, `__class__` is faster, because
    the interpreter caches the last type.
    """
    if isinstance(field_type, CheckedType):
        field_type = field_type.inner
    if isinstance(field_type, OptionalType):
        return [f"if {value} is not None:", *indented(_write_lines(value, field_type.inner))]
    if type(field_type) in _EXACT:
        return [f"if {value}.__class__ is not {_EXACT[type(field_type)]}:", "    raise Decline"]
    if isinstance(field_type, FloatType):
        return [f"if {value}.__class__ is not float or not lowest < {value} < highest:", "    raise Decline"]
    if isinstance(field_type, DecimalType):
        test = f"if {value}.__class__ is not Decimal or not {value}.is_finite():"
        return [test, "    raise Decline", f"{value} = str({value})"]
    if isinstance(field_type, DatetimeType):
        test = f"if {value}.__class__ is not datetime or {value}.utcoffset() is None:"
        return [test, "    raise Decline", f"{value} = {value}.isoformat()"]
    if isinstance(field_type, (ModelType, TaggedUnionType)):
        return [f"{value} = writers[type({value})]({value}, free)"]
    if isinstance(field_type, ListType) and isinstance(field_type.inner, (ModelType, TaggedUnionType)):
        return [  # a loop, because a comprehension is a function call of its own before Python 3.12
            f"if {value}.__class__ is not list:",
            f"    if {value}.__class__ is not SharedList:",
            "        raise Decline",
            f"    {value} = shared_members({value})",
            "written = []",
            f"for member in {value}:",
            "    written.append(writers[type(member)](member, free))",
            f"{value} = written",
        ]
    if isinstance(field_type, DictType) and type(field_type.inner) is FieldType:
        return [f"if {value}.__class__ is not dict:", "    raise Decline", f"free.append({value})"]
    if (
        isinstance(field_type, UnionType)
        and isinstance(field_type.options[0], StrType)
        and len(field_type.options) == 2
    ):
        return [f"if type({value}) is not str:", *indented(_write_lines(value, field_type.options[1]))]
    # A test here for dicts of nothing but leaves was tried, and costs more than it saves `encode`.
    return [f"if type({value}) not in LEAVES:", f"    free.append({value})"]
