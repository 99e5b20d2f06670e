"""What a field accepts: one field type per type annotation, and how it coerces a value.

No field type raises for bad data: it notes the problem in the `Coercion` it was given and goes on, so that one error
lists everything.
"""

from __future__ import annotations

import collections
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Union

from amplifier.errors import ModelError

from .base import Coercion, FieldType, Model
from .problems import Path, short, type_name
from .shared_list import SharedList, shared_members

# An integer a person may have typed: what the reference accepts for an int field ("5", " 5 ", "5.0", "1_000").
_WHOLE_NUMBER = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(?:\.0+)?\s*")
# Longer texts are not numbers anyone meant, and Python refuses to convert them anyway.
MAX_DIGITS = 4300
_FIRST_TOO_LONG = Decimal(10) ** MAX_DIGITS

_TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE_WORDS = frozenset({"0", "false", "f", "no", "n", "off"})

LIST_LIKE = (list, tuple, set, frozenset, collections.deque)


class OpaqueType(FieldType):
    """A type we know nothing about: like `Any`, except that whole values of it are left to cattrs."""


class StrType(FieldType):
    """Text. Numbers are not text: they are refused rather than converted."""

    expected = "str"
    claimed = (str,)

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if isinstance(value, str):
            return coercion.text(value, path)
        return self.wrong(value, path, coercion)


class _NumberType(FieldType):
    def claims(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)


class IntType(_NumberType):
    """Whole numbers; also bools, integral floats, numeric strings and whatever has `__index__`."""

    expected = "int"

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if isinstance(value, int):
            return coercion.integer(int(value), path)
        if isinstance(value, str):
            match = _WHOLE_NUMBER.fullmatch(value) if len(value) <= MAX_DIGITS else None
            if match is not None:
                return int(match[1])
            return coercion.note(path, f"expected int, got the str {short(value)}")
        if isinstance(value, (float, Decimal)):
            # The size comes first: a Decimal like 1E+999999999 is integral, and has a billion digits.
            is_small = math.isfinite(value) and bool(abs(value) < _FIRST_TOO_LONG)  # type: ignore[operator]
            if is_small and value == int(value):
                return int(value)
            return coercion.note(path, f"expected int, got {short(value)}")
        try:
            return operator.index(value)
        except TypeError:
            return self.wrong(value, path, coercion)


class FloatType(_NumberType):
    """Numbers; also bools, numeric strings and whatever has `__float__`."""

    expected = "float"

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        number: float
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                return coercion.note(path, f"expected float, got the str {short(value)}")
        elif hasattr(type(value), "__float__") or hasattr(type(value), "__index__"):
            try:
                number = float(value)
            except (TypeError, ValueError):
                return self.wrong(value, path, coercion)
            except OverflowError:
                return coercion.note(path, "expected float, got an int too large for one")
        else:
            return self.wrong(value, path, coercion)
        return coercion.number(number, path)


class BoolType(FieldType):
    """True and false; also 0, 1 and the usual words."""

    expected = "bool"
    claimed = (bool,)

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, (int, float)) and value in (0, 1):
            return bool(value)
        if isinstance(value, str):
            word = value.lower() if len(value) <= 5 else ""
            if word in _TRUE_WORDS:
                return True
            if word in _FALSE_WORDS:
                return False
            return coercion.note(path, f"expected bool, got the str {short(value)}")
        return self.wrong(value, path, coercion)


class DecimalType(FieldType):
    """Money. A float is refused: it has already lost the amount that was meant."""

    expected = "Decimal"

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if isinstance(value, float):
            return coercion.note(
                path, f"must be Decimal, not float (got {short(value)}); write it as a str or a Decimal"
            )
        if isinstance(value, bool) or not isinstance(value, (Decimal, int, str)):
            return self.wrong(value, path, coercion)
        try:
            amount = value if isinstance(value, Decimal) else Decimal(value)
        except (InvalidOperation, ValueError):
            return coercion.note(path, f"expected Decimal, got the str {short(value)}")
        if not amount.is_finite():
            return coercion.note(path, f"expected a finite Decimal, got {short(amount)}")
        return amount


class DatetimeType(FieldType):
    """A moment. One without a time zone means local time, as in the reference, and is made aware at once."""

    expected = "datetime or its ISO 8601 text"

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        moment = value
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                return coercion.note(path, f"expected {self.expected}, got {short(value)}")
        if not isinstance(moment, datetime):
            return self.wrong(value, path, coercion)
        try:
            return aware(moment)
        except (OverflowError, OSError, ValueError):
            return coercion.note(path, f"{short(value)} is too far away to have a time zone")


def aware(moment: datetime) -> datetime:
    """The same moment with an offset; without one it is read as local time."""
    return moment if moment.utcoffset() is not None else moment.astimezone()


class LiteralType(FieldType):
    """One of a few words."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = frozenset(values)
        listed = ", ".join(repr(value) for value in values)
        self.expected = listed if len(values) == 1 else f"one of {listed}"

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if isinstance(value, str):
            # A str enum compares equal to its word; the plain word is stored.
            for allowed in self.values:
                if value == allowed:
                    return allowed
            return coercion.note(path, f"expected {self.expected}, got {short(value)}")
        return self.wrong(value, path, coercion)

    def claims(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.values


class DictType(FieldType):
    """A mapping with str keys; copied, its values shared."""

    expected = "dict"
    claimed = (Mapping,)

    def __init__(self, inner: FieldType) -> None:
        self.inner = inner

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if not isinstance(value, Mapping):
            return self.wrong(value, path, coercion)
        if type(self.inner) is FieldType:
            return coercion.free_dict(value, path)
        coerced = {}
        for key, member in value.items():
            if not isinstance(key, str):
                coercion.note(path, f"expected str keys, got the {type_name(key)} key {short(key)}")
                continue
            coerced[coercion.text(key, path)] = self.inner.coerce(member, (path, key), coercion)
        return coerced


class ListType(FieldType):
    """A list; copied, and its members coerced one by one."""

    expected = "list"
    claimed = LIST_LIKE

    def __init__(self, inner: FieldType) -> None:
        self.inner = inner

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if not isinstance(value, LIST_LIKE):
            return self.wrong(value, path, coercion)
        if type(self.inner) is FieldType:
            return coercion.free_list(value, path)
        if isinstance(self.inner, ModelType) and {self.inner.cls}.issuperset(map(type, shared_members(value))):
            return value.share() if type(value) is SharedList else [*value]
        coerce = self.inner.coerce
        return [coerce(member, (path, index), coercion) for index, member in enumerate(value)]


class ModelType(FieldType):
    """One of our models: an instance is kept as it is, a dict becomes one."""

    def __init__(self, cls: type[Model]) -> None:
        self.cls = cls
        self.expected = f"{cls.__name__} or dict"
        self.claimed = (cls, Mapping)

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if value.__class__ is dict:  # by far the commonest, and much cheaper to ask than the ABC
            return coercion.model(self.cls, value, path)
        if isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            return self.wrong(value, path, coercion)
        return coercion.model(self.cls, value, path)


class TaggedUnionType(FieldType):
    """Models distinguished by their `type`; an unknown type goes to `fallback`, if there is one."""

    def __init__(self, by_tag: dict[str, type[Model]], fallback: type[Model] | None) -> None:
        self.by_tag = by_tag
        self.fallback = fallback
        self.classes = (*by_tag.values(), *([fallback] if fallback is not None else []))
        self.expected = "a dict with a type, or one of " + ", ".join(cls.__name__ for cls in self.classes)
        self.claimed = (*self.classes, Mapping)

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        if value.__class__ is not dict:
            if isinstance(value, self.classes):
                return value
            if not isinstance(value, Mapping):
                return self.wrong(value, path, coercion)
        tag = value.get("type")
        cls = self.by_tag.get(tag, self.fallback) if isinstance(tag, str) else None
        if cls is not None:
            return coercion.model(cls, value, path)
        if "type" not in value:
            return coercion.note((path, "type"), "required, but missing")
        if not isinstance(tag, str):
            return coercion.note((path, "type"), f"expected str, got {type_name(tag)}")
        known = ", ".join(repr(known) for known in self.by_tag)
        return coercion.note((path, "type"), f"expected one of {known}, got {short(tag)}")


class OptionalType(FieldType):
    """The inner type, or None."""

    def __init__(self, inner: FieldType) -> None:
        self.inner = inner
        self.expected = f"{inner.expected} or None"

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        return None if value is None else self.inner.coerce(value, path, coercion)


class UnionType(FieldType):
    """A union: the first option that claims the value takes it."""

    def __init__(self, options: tuple[FieldType, ...]) -> None:
        self.options = options
        self.expected = " or ".join(option.expected for option in options)

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        for option in self.options:
            if option.claims(value):
                return option.coerce(value, path, coercion)
        return self.wrong(value, path, coercion)


class CheckedType(FieldType):
    """A type with one rule more: `check` returns the value to store or raises ValueError."""

    def __init__(self, inner: FieldType, check: Callable[[Any], Any]) -> None:
        self.inner = inner
        self.check = check
        self.expected = inner.expected

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        before = len(coercion.problems)
        coerced = self.inner.coerce(value, path, coercion)
        if len(coercion.problems) != before:
            return None
        try:
            return self.check(coerced)
        except ModelError as error:
            coercion.adopt(error, path)
        except ValueError as error:
            return coercion.note(path, str(error))


_SCALARS: dict[Any, type[FieldType]] = {
    str: StrType,
    int: IntType,
    float: FloatType,
    bool: BoolType,
    Decimal: DecimalType,
    datetime: DatetimeType,
    Any: FieldType,
}


def field_type_of(annotation: Any) -> FieldType:
    """The field type for a resolved annotation; types we know nothing about are passed through unchecked."""
    scalar = _SCALARS.get(annotation) if isinstance(annotation, collections.abc.Hashable) else None
    if scalar is not None:
        return scalar()
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return ModelType(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return LiteralType(arguments)
    if annotation is list or origin is list:
        return ListType(field_type_of(arguments[0]) if arguments else FieldType())
    if annotation is dict or origin is dict:
        return DictType(field_type_of(arguments[1]) if arguments else FieldType())
    if origin is Union or origin is types.UnionType:
        return _union_type(arguments)
    return OpaqueType()


def _union_type(members: tuple[Any, ...]) -> FieldType:
    present = tuple(member for member in members if member is not types.NoneType)
    inner: FieldType
    if len(present) == 1:
        inner = field_type_of(present[0])
    else:
        options = tuple(field_type_of(member) for member in present)
        if all(isinstance(option, ModelType) for option in options):
            inner = _tagged_union([option.cls for option in options if isinstance(option, ModelType)])
        elif any(isinstance(option, OpaqueType) for option in options):
            inner = OpaqueType()
        elif any(type(option) is FieldType for option in options):
            inner = FieldType()
        else:
            inner = UnionType(options)
    return inner if len(present) == len(members) or type(inner) is FieldType else OptionalType(inner)


def _tagged_union(classes: list[type[Model]]) -> FieldType:
    by_tag: dict[str, type[Model]] = {}
    fallback: type[Model] | None = None
    for cls in classes:
        tag = next((field.type for field in cls.__model_fields_of__ if field.name == "type"), None)
        if isinstance(tag, LiteralType):
            by_tag.update(dict.fromkeys(sorted(tag.values), cls))
        elif isinstance(tag, StrType) and fallback is None:
            fallback = cls
        else:
            return OpaqueType()
    return TaggedUnionType(by_tag, fallback)


def is_understood(field_type: FieldType) -> bool:
    """Whether our own rules cover the type completely."""
    if isinstance(field_type, UnionType):
        return all(is_understood(option) for option in field_type.options)
    if isinstance(field_type, (OptionalType, ListType, DictType)):
        return is_understood(field_type.inner)
    return not isinstance(field_type, OpaqueType)
