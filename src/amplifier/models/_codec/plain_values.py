"""Free-form values on their way to and from JSON: a fast check, a fast copy, and the careful walk behind both.

The fast functions accept only what JSON can hold exactly and decline everything else; `PlainWalk` then decides, with
a path for every problem. Above: `_reading`, `_fast_reading`, `_fast_writing`, `_converter`. Below: `_base`.
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

from amplifier.errors import Problem
from amplifier.models._definition.base import Model, ModelField, OpenModel
from amplifier.models._definition.field_types import (
    MAX_DIGITS,
    EitherShape,
    ListShape,
    LiteralShape,
    ModelShape,
    OptionalShape,
    Shape,
    TaggedShape,
    aware,
)
from amplifier.models._definition.problems import Path, path_text, short, type_name

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


def vet(value: Any, room: int = MAX_DEPTH) -> int:
    """Check that a dict or list holds exact JSON values, and return how many containers are inside it.

    Raises:
        Decline: It does not, or it is too deep, or suspiciously large.
    """
    if not room:
        raise Decline
    inside = 0
    for member in value.values() if value.__class__ is dict else value:
        kind = type(member)
        if kind is str or kind is int:
            continue
        if kind is dict or kind is list:
            inside += 1 + vet(member, room - 1)
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
    room, containers = MAX_DEPTH - 1, 0
    while level:
        room -= 1
        containers += len(level)
        if not room or containers > MANY_CONTAINERS or not _DICT_OR_LIST.issuperset(map(type, level)):
            return False
        members = sum(map(len, level))
        if members > _MANY_MEMBERS:
            return False
        inside = get_referents(*level)
        if (
            len(inside) != members
        ):  # odd keys, or the attributes of a living object, which Python 3.13 does not show here
            return False
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


def only_word(shape: Shape) -> str | None:
    """The word of a field that can hold only one; it is written whatever was assigned, because the class decides."""
    return next(iter(shape.values)) if isinstance(shape, LiteralShape) and len(shape.values) == 1 else None


def list_of_models(shape: Shape) -> ListShape | None:
    """The part of a field's shape that is a list of our own models, if there is one."""
    if isinstance(shape, OptionalShape):
        return list_of_models(shape.inner)
    if isinstance(shape, EitherShape):
        return next((found for option in shape.options if (found := list_of_models(option))), None)
    is_one = isinstance(shape, ListShape) and isinstance(shape.inner, (ModelShape, TaggedShape))
    return shape if is_one and isinstance(shape, ListShape) else None


class PlainWalk:
    """Turns any value into JSON values, noting a problem for everything JSON cannot hold.

    A tuple becomes a list; Decimals, dates, times and UUIDs become text; an enum member becomes its value; models
    become dicts. Sets, bytes and other objects are problems: nothing is ever written by its `str()`.
    """

    def __init__(
        self,
        problems: list[Problem],
        *,
        large_int: Callable[[str], Any] | None = None,
        foreign: Callable[[Any], Any] | None = None,
    ) -> None:
        self.problems = problems
        self._large_int = large_int
        self._foreign = foreign
        self._inside: set[int] = set()
        self._seen: set[int] = set()
        self._visits = 0

    def note(self, path: Path, problem: str) -> None:
        self.problems.append((path_text(path), problem))

    def start(self, value: Any, path: Path = None) -> Any:
        """Walk a whole value; problems are noted, never raised."""
        try:
            return self._walk(value, path, MAX_DEPTH)
        except _TooManyContainers:
            self.note(
                path, f"uses the same parts so often that its JSON would hold over {MANY_CONTAINERS:,} containers"
            )
        except RecursionError:
            self.note(path, "nested too deeply")
        return None

    def _walk(self, value: Any, path: Path, room: int) -> Any:
        kind = value.__class__
        if kind is str:
            return self.text(value, path)
        if value is None or kind is bool:
            return value
        if kind is int:
            return self.integer(value, path)
        if kind is float:
            return self.number(value, path)
        if kind is dict:
            return self._container(value, value, path, room)
        if kind is list or kind is tuple:
            return self._container(value, value, path, room)
        if isinstance(value, Model):
            return self._model(value, path, room)
        return self._other(value, path, room)

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
            self.note(path, f"an int of more than {MAX_DIGITS} digits")
            return None
        if self._large_int is None:
            return value
        try:
            return self._large_int(str(value))
        except ValueError as error:  # the interpreter may have been told a lower limit than ours
            self.note(path, str(error))
            return None

    def number(self, value: float, path: Path) -> float | None:
        if math.isfinite(value):
            return value
        self.note(path, f"{value!r} is not a JSON number")
        return None

    def _other(self, value: Any, path: Path, room: int) -> Any:
        """Types that are not JSON's own; the subclasses are read through the base, so no foreign code runs."""
        if isinstance(value, enum.Enum):
            return self._walk(value.value, path, room)
        if isinstance(value, str):
            return self.text(str.__str__(value), path)
        if isinstance(value, int):
            return self.integer(int.__int__(value), path)
        if isinstance(value, float):
            return self.number(float.__float__(value), path)
        if isinstance(value, Mapping):
            return self._container(value, dict(value), path, room)
        if isinstance(value, (list, tuple)):
            return self._container(value, list(value), path, room)
        if isinstance(value, Decimal):
            if value.is_finite():
                return str(value)
            self.note(path, f"{value!r} is not a JSON number")
            return None
        if isinstance(value, datetime):
            return self._moment(value, path)
        if isinstance(value, (date, time)):
            return value.isoformat()
        # Nobody holds an instance of a class whose module was never imported, and importing it takes its time.
        if (uuid := sys.modules.get("uuid")) is not None and isinstance(value, uuid.UUID):
            return str(value)
        if self._foreign is not None and (dataclasses.is_dataclass(value) or attrs.has(type(value))):
            return self._container(value, self._foreign(value), path, room)
        self.note(path, f"expected a JSON value, got {type_name(value)}")
        return None

    def _moment(self, value: datetime, path: Path) -> str | None:
        try:
            return aware(value).isoformat()
        except (OverflowError, OSError, ValueError):
            self.note(path, f"{short(value)} is too far away to have a time zone")
            return None

    # ── containers ──

    def _container(self, owner: Any, members: Any, path: Path, room: int) -> Any:
        """Enter `members`; `owner` is the object they were taken from and stands for them in the bookkeeping."""
        if not room:
            self.note(path, f"nested deeper than {MAX_DEPTH} levels")
            return None
        if not self._enter(owner, path):
            return None
        try:
            if isinstance(members, dict):
                return self._dict(members, path, room - 1)
            return [self._walk(member, (path, index), room - 1) for index, member in enumerate(members)]
        finally:
            self._inside.discard(id(owner))

    def _enter(self, owner: Any, path: Path) -> bool:
        identity = id(owner)
        if identity in self._inside:
            self.note(path, "contains itself")
            return False
        self._inside.add(identity)
        self._seen.add(identity)
        self._visits += 1
        if self._visits > MANY_CONTAINERS and self._visits > MAX_SHARING * len(self._seen):
            raise _TooManyContainers
        return True

    def _dict(self, members: dict[Any, Any], path: Path, room: int) -> dict[str, Any]:
        plain = {}
        for key, member in members.items():
            if isinstance(key, str) and not isinstance(key, enum.Enum):
                plain[self.text(str.__str__(key), path)] = self._walk(member, (path, key), room)
            else:
                self.note(path, f"expected str keys, got the {type_name(key)} key {short(key)}")
        return plain

    def _model(self, value: Model, path: Path, room: int) -> Any:
        if not room:
            self.note(path, f"nested deeper than {MAX_DEPTH} levels")
            return None
        if not self._enter(value, path):
            return None
        try:
            plain: dict[str, Any] = {}
            for field in value.__model_fields_of__:
                member = only_word(field.shape) or getattr(value, field.name, None)
                if member is not None or not field.is_left_out_when_none:
                    plain[field.name] = self._field(member, field, (path, field.name), room)
            if isinstance(value, OpenModel) and value.extra:
                unknown = {name: member for name, member in value.extra.items() if name not in plain}
                for field in value.__model_fields_of__:
                    unknown.pop(field.name, None)
                plain.update(self._dict(unknown, path, room))
            return value._in_order(plain)
        finally:
            self._inside.discard(id(value))

    def _field(self, value: Any, field: ModelField, path: Path, room: int) -> Any:
        """A declared field: its own structure costs no room, only what is free-form inside it does."""
        if isinstance(value, list) and list_of_models(field.shape) is not None:
            if not self._enter(value, path):
                return None
            try:
                return [self._walk(member, (path, index), room) for index, member in enumerate(value)]
            finally:
                self._inside.discard(id(value))
        return self._walk(value, path, room)
