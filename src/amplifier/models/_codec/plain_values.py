"""Free-form values on their way to and from JSON: fast checks, and the complete conversion behind them.

The fast functions accept only what JSON can hold exactly and decline everything else; `JsonConversion` then decides, with
a path for every problem.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from gc import get_referents, is_tracked
from typing import Any

import attrs
import orjson

from amplifier.models._definition.base import Coercion, FieldType, Model, ModelField, OpenModel
from amplifier.models._definition.field_types import (
    MAX_DIGITS,
    ListType,
    LiteralType,
    ModelType,
    OptionalType,
    TaggedUnionType,
    UnionType,
    aware,
)
from amplifier.models._definition.problems import Path, short, type_name

MAX_DEPTH = 100
"""How many dicts and lists a free-form value may nest; the declared structure around it does not count."""

_MAX_BITS = math.floor(MAX_DIGITS * math.log2(10))

# Beyond these a float from the codec may be an integer it could not hold; within them it is exact. The chained
# comparison also fails for NaN and the infinities, so one test serves both directions.
LOWEST_SURE_FLOAT = -(2.0**63)
HIGHEST_SURE_FLOAT = 2.0**64

LEAVES = frozenset({str, int, bool, type(None)})
"""Exact types that need no look inside; what the codec refuses of them (huge ints, surrogates), it reports itself."""

STRICTLY = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""The codec refuses what it would otherwise write by rules of its own."""

_DICT_OR_LIST = frozenset({dict, list})

# A value may be one list reachable by 2**50 routes. No honest one unrolls into this many containers and is small.
MANY_CONTAINERS = 100_000
_MANY_MEMBERS = 50 * MANY_CONTAINERS  # so that looking at it takes no more than some tens of megabytes
MAX_SHARING = 4


class Decline(Exception):
    """The fast path is not sure; the careful one has to look."""


class _TooManyContainers(Exception):
    """Sharing makes the value exponentially larger as text than it is in memory."""


def vet(value: Any, levels: int = MAX_DEPTH) -> int:
    """Check that a dict or list holds exact JSON values, and return how many containers are inside it.

    Raises:
        Decline: It does not, or it is too deep, or suspiciously large.
    """
    if not levels:
        raise Decline
    inside = 0
    for member in value.values() if value.__class__ is dict else value:
        kind = type(member)
        if kind is str or kind is int:
            continue
        if kind is dict or kind is list:
            inside += 1 + vet(member, levels - 1)
        elif kind is float:
            if not LOWEST_SURE_FLOAT < member < HIGHEST_SURE_FLOAT:
                raise Decline
        elif kind not in LEAVES:
            raise Decline
    if inside > MANY_CONTAINERS:
        raise Decline
    return inside


def vetted(value: Any) -> Any:
    """The value itself, if it is an exact JSON value.

    Raises:
        Decline: It is not.
    """
    if value.__class__ is dict or value.__class__ is list:
        vet(value)
    elif value.__class__ not in LEAVES:
        vet((value,))
    return value


def is_writable_size(values: list[Any]) -> bool:
    """Whether free-form values are neither too deep nor, by sharing their parts, exponentially larger as text.

    For writing, where the codec itself refuses what is not JSON. It asks about all free-form values of a model at once
    and never looks at a leaf in Python, which makes it six times as fast as `vet`. A False means only: look closer.
    """
    level = list(filter(is_tracked, values))
    levels, containers = MAX_DEPTH - 1, 0
    while level:
        levels -= 1
        containers += len(level)
        if not levels or containers > MANY_CONTAINERS or not _DICT_OR_LIST.issuperset(map(type, level)):
            return False
        members = sum(map(len, level))
        if members > _MANY_MEMBERS:
            return False
        inside = get_referents(*level)
        if len(inside) != members:
            return False  # odd keys, or the attributes of a living object, which Python 3.13 does not show here
        # CPython does not track a dict that holds nothing but atoms, so flat dicts drop out of the walk here. Where
        # it does track them (3.14), the answer is the same and takes a little longer.
        level = list(filter(is_tracked, inside))
    return True


def may_hide_nan(text: bytes) -> bool:
    """Whether the codec's text holds a null; it writes NaN and the infinities that way.

    A null in the middle of a sentence or of a quoted JSON text does not count.
    """
    found = text.rfind(b"null")  # backwards, because Python searches that way twice as fast
    while found > 0:
        if text[found - 1] in b"[,:" and text[found - 3 : found - 1] != b'\\"':
            return True
        found = text.rfind(b"null", 0, found)
    return False


def only_word(field_type: FieldType) -> str | None:
    """The word of a field that can hold only one; it is written whatever was assigned, because the class decides."""
    if not isinstance(field_type, LiteralType) or len(field_type.values) != 1:
        return None
    [word] = field_type.values
    return str(word)


def has_list_of_models(field_type: FieldType) -> bool:
    """Whether a field may hold a list of models as its declared type."""
    if isinstance(field_type, OptionalType):
        return has_list_of_models(field_type.inner)
    if isinstance(field_type, UnionType):
        return any(map(has_list_of_models, field_type.options))
    return isinstance(field_type, ListType) and isinstance(field_type.inner, (ModelType, TaggedUnionType))


class JsonConversion(Coercion):
    """Converts any value to JSON values, noting a problem for everything JSON cannot hold.

    A tuple becomes a list; Decimals, dates, times and UUIDs become text; an enum member becomes its value; models
    become dicts. Sets, bytes and other objects are problems: nothing is ever written by its `str()`.

    Args:
        large_int: Converts the digits of an integer over 64 bits; without it the integer is kept.
        foreign: Converts an instance of a dataclass or of an attrs class that is no model; without it that is a problem.
    """

    __slots__ = ("_foreign", "_large_int", "_open", "_seen", "_visits")

    def __init__(
        self, *, large_int: Callable[[str], Any] | None = None, foreign: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__()
        self._large_int = large_int
        self._foreign = foreign
        self._open: set[int] = set()
        self._seen: set[int] = set()
        self._visits = 0

    def convert(self, value: Any, path: Path = None) -> Any:
        """Convert a whole value; problems are noted, never raised."""
        try:
            return self._value(value, path, MAX_DEPTH)
        except _TooManyContainers:
            return self.note(
                path, f"uses the same parts so often that its JSON would hold over {MANY_CONTAINERS:,} containers"
            )
        except RecursionError:
            return self.note(path, "nested too deeply")

    def _value(self, value: Any, path: Path, levels: int) -> Any:
        kind = value.__class__
        if kind is str:
            return self.text(value, path)
        if value is None or kind is bool:
            return value
        if kind is int:
            return self.integer(value, path)
        if kind is float:
            return self.number(value, path)
        if kind is dict or kind is list or kind is tuple:
            return self._container(value, value, path, levels)
        if isinstance(value, Model):
            return self._model(value, path, levels)
        return self._other(value, path, levels)

    # ── leaves ──

    def text(self, value: str, path: Path) -> str:
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                self.note(path, f"half a surrogate pair at character {error.start}, which JSON cannot hold")
        return value

    def integer(self, value: int, path: Path) -> Any:
        if -(2**63) <= value < 2**64:
            return value
        if value.bit_length() > _MAX_BITS:
            return self.note(path, f"an int of more than {MAX_DIGITS} digits")
        if self._large_int is None:
            return value
        try:
            return self._large_int(str(value))
        except ValueError as error:  # the interpreter may be configured with a lower limit than ours
            return self.note(path, str(error))

    def number(self, value: float, path: Path) -> float | None:
        if math.isfinite(value):
            return value
        self.note(path, f"{value!r} is not a JSON number")
        return None

    def _other(self, value: Any, path: Path, levels: int) -> Any:
        """Types that are not JSON's own; the subclasses are read through the base, so no foreign code runs."""
        if isinstance(value, enum.Enum):
            return self._value(value.value, path, levels)
        if isinstance(value, str):
            return self.text(str.__str__(value), path)
        if isinstance(value, int):
            return self.integer(int.__int__(value), path)
        if isinstance(value, float):
            return self.number(float.__float__(value), path)
        if isinstance(value, Mapping):
            return self._container(value, dict(value), path, levels)
        if isinstance(value, (list, tuple)):
            return self._container(value, list(value), path, levels)
        if isinstance(value, Decimal):
            return str(value) if value.is_finite() else self.note(path, f"{value!r} is not a JSON number")
        if isinstance(value, datetime):
            try:
                return aware(value).isoformat()
            except (OverflowError, OSError, ValueError):
                return self.note(path, f"{short(value)} is too far away to have a time zone")
        if isinstance(value, (date, time)):
            return value.isoformat()
        # No program holds an instance of a class whose module was never imported, and importing it takes its time.
        if (uuid := sys.modules.get("uuid")) is not None and isinstance(value, uuid.UUID):
            return str(value)
        if self._foreign is not None and (dataclasses.is_dataclass(value) or attrs.has(type(value))):
            return self._container(value, self._foreign(value), path, levels)
        return self.note(path, f"expected a JSON value, got {type_name(value)}")

    # ── containers ──

    def _container(self, owner: Any, members: Any, path: Path, levels: int) -> Any:
        """Convert `members`; `owner` is the object they were taken from, by which cycles are found."""
        if not self._enter(owner, path, levels):
            return None
        try:
            if isinstance(members, dict):
                return self._members(members, path, levels - 1)
            return [self._value(member, (path, index), levels - 1) for index, member in enumerate(members)]
        finally:
            self._open.discard(id(owner))

    def _enter(self, owner: Any, path: Path, levels: int) -> bool:
        if not levels:
            self.note(path, f"nested deeper than {MAX_DEPTH} levels")
            return False
        identity = id(owner)
        if identity in self._open:
            self.note(path, "contains itself")
            return False
        self._open.add(identity)
        self._seen.add(identity)
        self._visits += 1
        if self._visits > MANY_CONTAINERS and self._visits > MAX_SHARING * len(self._seen):
            raise _TooManyContainers
        return True

    def _members(self, members: dict[Any, Any], path: Path, levels: int) -> dict[str, Any]:
        plain = {}
        for key, member in members.items():
            if isinstance(key, str) and not isinstance(key, enum.Enum):
                plain[self.text(str.__str__(key), path)] = self._value(member, (path, key), levels)
            else:
                self.note(path, f"expected str keys, got the {type_name(key)} key {short(key)}")
        return plain

    def _model(self, value: Model, path: Path, levels: int) -> Any:
        if not self._enter(value, path, levels):
            return None
        try:
            plain: dict[str, Any] = {}
            for field in value.__model_fields_of__:
                member = only_word(field.type) or getattr(value, field.name, None)
                if member is not None or not field.is_left_out_when_none:
                    plain[field.name] = self._field(member, field, (path, field.name), levels)
            if isinstance(value, OpenModel) and value.extra:
                declared = {field.name for field in value.__model_fields_of__}
                unknown = {name: member for name, member in value.extra.items() if name not in declared}
                plain.update(self._members(unknown, path, levels))
            return value._in_order(plain)
        finally:
            self._open.discard(id(value))

    def _field(self, value: Any, field: ModelField, path: Path, levels: int) -> Any:
        """A declared field: its own structure takes no level, only what is free-form inside it does."""
        if not isinstance(value, list) or not has_list_of_models(field.type):
            return self._value(value, path, levels)
        if not self._enter(value, path, levels):
            return None
        try:
            return [self._value(member, (path, index), levels) for index, member in enumerate(value)]
        finally:
            self._open.discard(id(value))
