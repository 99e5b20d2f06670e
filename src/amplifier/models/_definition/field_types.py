"""What a field accepts: one shape per type annotation, and how a foreign value is brought into it.

Above: `_base` asks for the shape of every field and calls it when a model is built; `_reading` uses the same
shapes for JSON. Below: `_problems` only. Nothing here knows JSON text, and no shape ever raises for bad data:
it notes the problem in the `Building` it was given and goes on, so that one error lists everything.
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
from typing import TYPE_CHECKING, Any, Literal, Union

from amplifier.errors import ModelError

from .problems import Building, Path, short, type_name

if TYPE_CHECKING:
    from .base import Model

# An integer a person may have typed: what the reference accepts for an int field ("5", " 5 ", "5.0", "1_000").
_WHOLE_NUMBER = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(?:\.0+)?\s*")
# Longer texts are not numbers anyone meant, and Python refuses to convert them anyway.
MAX_DIGITS = 4300
_FIRST_TOO_LONG = Decimal(10) ** MAX_DIGITS

_TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE_WORDS = frozenset({"0", "false", "f", "no", "n", "off"})

LIST_LIKE = (list, tuple, set, frozenset, collections.deque)


class Shape:
    """Accepts anything, unchanged. Base of all shapes, and the shape of `Any`."""

    expected = "anything"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        """Return the value to store, or note in `building` why there is none."""
        return building.free(value, path)

    def claims(self, value: Any) -> bool:
        """Whether a union should hand `value` to this shape."""
        return True

    def wrong(self, value: Any, path: Path, building: Building) -> None:
        building.note(path, f"expected {self.expected}, got {type_name(value)}")


class OpaqueShape(Shape):
    """A type we know nothing about: like `Any`, except that whole values of it are left to cattrs."""


class StrShape(Shape):
    """Text. Numbers are not text: they are refused rather than converted."""

    expected = "str"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if isinstance(value, str):
            return building.text(value, path)
        return self.wrong(value, path, building)

    def claims(self, value: Any) -> bool:
        return isinstance(value, str)


class IntShape(Shape):
    """Whole numbers; also bools, integral floats, numeric strings and whatever has `__index__`."""

    expected = "int"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if isinstance(value, int):
            return building.integer(int(value), path)
        if isinstance(value, str):
            match = _WHOLE_NUMBER.fullmatch(value) if len(value) <= MAX_DIGITS else None
            if match is not None:
                return int(match[1])
            building.note(path, f"expected int, got the str {short(value)}")
            return None
        if isinstance(value, (float, Decimal)):
            # The size comes first: a Decimal like 1E+999999999 is integral, and has a billion digits.
            is_small = math.isfinite(value) and bool(abs(value) < _FIRST_TOO_LONG)  # type: ignore[operator]
            if is_small and value == int(value):
                return int(value)
            building.note(path, f"expected int, got {short(value)}")
            return None
        try:
            return operator.index(value)
        except TypeError:
            return self.wrong(value, path, building)

    def claims(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)


class FloatShape(Shape):
    """Numbers; also bools, numeric strings and whatever has `__float__`."""

    expected = "float"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        number: float
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                building.note(path, f"expected float, got the str {short(value)}")
                return None
        elif hasattr(type(value), "__float__") or hasattr(type(value), "__index__"):
            try:
                number = float(value)
            except (TypeError, ValueError):
                return self.wrong(value, path, building)
            except OverflowError:
                building.note(path, "expected float, got an int too large for one")
                return None
        else:
            return self.wrong(value, path, building)
        return building.number(number, path)

    def claims(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)


class BoolShape(Shape):
    """True and false; also 0, 1 and the usual words."""

    expected = "bool"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
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
            building.note(path, f"expected bool, got the str {short(value)}")
            return None
        return self.wrong(value, path, building)

    def claims(self, value: Any) -> bool:
        return isinstance(value, bool)


class DecimalShape(Shape):
    """Money. A float is refused: it has already lost the amount that was meant."""

    expected = "Decimal"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if isinstance(value, float):
            building.note(path, f"must be Decimal, not float (got {short(value)}); write it as a str or a Decimal")
            return None
        if isinstance(value, bool) or not isinstance(value, (Decimal, int, str)):
            return self.wrong(value, path, building)
        try:
            amount = value if isinstance(value, Decimal) else Decimal(value)
        except (InvalidOperation, ValueError):
            building.note(path, f"expected Decimal, got the str {short(value)}")
            return None
        if not amount.is_finite():
            building.note(path, f"expected a finite Decimal, got {short(amount)}")
            return None
        return amount


class DatetimeShape(Shape):
    """A moment. One without a time zone means local time, as in the reference, and is made aware at once."""

    expected = "datetime or its ISO 8601 text"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        moment = value
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                building.note(path, f"expected {self.expected}, got {short(value)}")
                return None
        if not isinstance(moment, datetime):
            return self.wrong(value, path, building)
        try:
            return aware(moment)
        except (OverflowError, OSError, ValueError):
            building.note(path, f"{short(value)} is too far away to have a time zone")
            return None


def aware(moment: datetime) -> datetime:
    """The same moment with an offset; without one it is read as local time."""
    return moment if moment.utcoffset() is not None else moment.astimezone()


class LiteralShape(Shape):
    """One of a few words."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = frozenset(values)
        listed = ", ".join(repr(value) for value in values)
        self.expected = listed if len(values) == 1 else f"one of {listed}"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if isinstance(value, str):
            # A str enum compares equal to its word; the plain word is stored.
            for allowed in self.values:
                if value == allowed:
                    return allowed
            building.note(path, f"expected {self.expected}, got {short(value)}")
            return None
        return self.wrong(value, path, building)

    def claims(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.values


class DictShape(Shape):
    """A mapping with str keys; copied, its values shared."""

    expected = "dict"

    def __init__(self, inner: Shape) -> None:
        self.inner = inner

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if not isinstance(value, Mapping):
            return self.wrong(value, path, building)
        if type(self.inner) is Shape:
            return building.free_dict(value, path)
        coerced = {}
        for key, member in value.items():
            if not isinstance(key, str):
                building.note(path, f"expected str keys, got the {type_name(key)} key {short(key)}")
                continue
            coerced[building.text(key, path)] = self.inner.coerce(member, (path, key), building)
        return coerced

    def claims(self, value: Any) -> bool:
        return isinstance(value, Mapping)


class ListShape(Shape):
    """A list; copied, and its members coerced one by one."""

    expected = "list"

    def __init__(self, inner: Shape) -> None:
        self.inner = inner

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if not isinstance(value, LIST_LIKE):
            return self.wrong(value, path, building)
        if type(self.inner) is Shape:
            return building.free_list(value, path)
        coerce = self.inner.coerce
        return [coerce(member, (path, index), building) for index, member in enumerate(value)]

    def claims(self, value: Any) -> bool:
        return isinstance(value, LIST_LIKE)


class ModelShape(Shape):
    """One of our models: an instance is kept as it is, a dict becomes one."""

    def __init__(self, cls: type[Model]) -> None:
        self.cls = cls
        self.expected = f"{cls.__name__} or dict"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if value.__class__ is dict:  # by far the commonest, and much cheaper to ask than the ABC
            return building.model(self.cls, value, path)
        if isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            return self.wrong(value, path, building)
        return building.model(self.cls, value, path)

    def claims(self, value: Any) -> bool:
        return isinstance(value, (self.cls, Mapping))


class TaggedShape(Shape):
    """Models told apart by their `type`; a type nobody knows goes to `fallback`, if there is one."""

    def __init__(self, by_tag: dict[str, type[Model]], fallback: type[Model] | None) -> None:
        self.by_tag = by_tag
        self.fallback = fallback
        self.classes = (*by_tag.values(), *([fallback] if fallback is not None else []))
        self.expected = "a dict with a type, or one of " + ", ".join(cls.__name__ for cls in self.classes)

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        if value.__class__ is not dict:
            if isinstance(value, self.classes):
                return value
            if not isinstance(value, Mapping):
                return self.wrong(value, path, building)
        tag = value.get("type")
        cls = self.by_tag.get(tag, self.fallback) if isinstance(tag, str) else None
        if cls is not None:
            return building.model(cls, value, path)
        if "type" not in value:
            building.note((path, "type"), "required, but missing")
        elif isinstance(tag, str):
            known = ", ".join(repr(known) for known in self.by_tag)
            building.note((path, "type"), f"expected one of {known}, got {short(tag)}")
        else:
            building.note((path, "type"), f"expected str, got {type_name(tag)}")
        return None

    def claims(self, value: Any) -> bool:
        return isinstance(value, (*self.classes, Mapping))


class OptionalShape(Shape):
    """The inner shape, or None."""

    def __init__(self, inner: Shape) -> None:
        self.inner = inner
        self.expected = f"{inner.expected} or None"

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        return None if value is None else self.inner.coerce(value, path, building)

    def claims(self, value: Any) -> bool:
        return value is None or self.inner.claims(value)


class EitherShape(Shape):
    """A union: the first option that claims the value takes it."""

    def __init__(self, options: tuple[Shape, ...]) -> None:
        self.options = options
        self.expected = " or ".join(option.expected for option in options)

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        for option in self.options:
            if option.claims(value):
                return option.coerce(value, path, building)
        return self.wrong(value, path, building)

    def claims(self, value: Any) -> bool:
        return any(option.claims(value) for option in self.options)


class CheckedShape(Shape):
    """A shape with one rule more: `check` returns the value to store or raises ValueError."""

    def __init__(self, inner: Shape, check: Callable[[Any], Any]) -> None:
        self.inner = inner
        self.check = check
        self.expected = inner.expected

    def coerce(self, value: Any, path: Path, building: Building) -> Any:
        before = len(building.problems)
        coerced = self.inner.coerce(value, path, building)
        if len(building.problems) != before:
            return None
        try:
            return self.check(coerced)
        except ModelError as error:
            building.adopt(error, path)
        except ValueError as error:
            building.note(path, str(error))
        return None


_SCALARS: dict[Any, type[Shape]] = {
    str: StrShape,
    int: IntShape,
    float: FloatShape,
    bool: BoolShape,
    Decimal: DecimalShape,
    datetime: DatetimeShape,
    Any: Shape,
}


def shape_of(annotation: Any) -> Shape:
    """The shape for a resolved type annotation; types we know nothing about are passed through unchecked."""
    scalar = _SCALARS.get(annotation) if isinstance(annotation, collections.abc.Hashable) else None
    if scalar is not None:
        return scalar()
    if isinstance(annotation, type) and hasattr(annotation, "__model_fields_of__"):
        return ModelShape(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return LiteralShape(arguments)
    if annotation is list or origin is list:
        return ListShape(shape_of(arguments[0]) if arguments else Shape())
    if annotation is dict or origin is dict:
        return DictShape(shape_of(arguments[1]) if arguments else Shape())
    if origin is Union or origin is types.UnionType:
        return _union_shape(arguments)
    return OpaqueShape()


def _union_shape(members: tuple[Any, ...]) -> Shape:
    present = tuple(member for member in members if member is not types.NoneType)
    inner: Shape
    if len(present) == 1:
        inner = shape_of(present[0])
    else:
        shapes = tuple(shape_of(member) for member in present)
        if all(isinstance(shape, ModelShape) for shape in shapes):
            inner = _tagged_shape([shape.cls for shape in shapes if isinstance(shape, ModelShape)])
        elif any(isinstance(shape, OpaqueShape) for shape in shapes):
            inner = OpaqueShape()
        elif any(type(shape) is Shape for shape in shapes):
            inner = Shape()
        else:
            inner = EitherShape(shapes)
    return inner if len(present) == len(members) or type(inner) is Shape else OptionalShape(inner)


def _tagged_shape(classes: list[type[Model]]) -> Shape:
    by_tag: dict[str, type[Model]] = {}
    fallback: type[Model] | None = None
    for cls in classes:
        tag = next((field.shape for field in cls.__model_fields_of__ if field.name == "type"), None)
        if isinstance(tag, LiteralShape):
            by_tag.update(dict.fromkeys(sorted(tag.values), cls))
        elif isinstance(tag, StrShape) and fallback is None:
            fallback = cls
        else:
            return OpaqueShape()
    return TaggedShape(by_tag, fallback)


def is_understood(shape: Shape) -> bool:
    """Whether our own rules cover the type completely."""
    if isinstance(shape, EitherShape):
        return all(is_understood(option) for option in shape.options)
    if isinstance(shape, (OptionalShape, ListShape, DictShape)):
        return is_understood(shape.inner)
    return not isinstance(shape, OpaqueShape)
