"""Conversion of values to JSON, with a path for every problem.

`vetted` quickly accepts values that need no conversion. It declines all others, which
`convert_to_json` handles. Both functions allow `MAX_DEPTH` levels of nesting.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeAlias

import attrs

from amplifier.errors import ModelError, Problem

from ._walk import MANY_CONTAINERS, TOO_LARGE, Frame, format_path, rebuild

JSON: TypeAlias = Any
"""A JSON value: None, a bool, a number, text, a list or a dict with str keys."""

# Maximum nesting of dicts and lists. A free-form value of 100 levels fits anywhere in any model.
MAX_DEPTH = 120

# Python itself refuses to convert longer integers.
MAX_DIGITS = 4300

_MAX_BITS = math.floor(MAX_DIGITS * math.log2(10))

# A float from the codec beyond these limits may be an integer that did not fit. Within them, it is
# exact. The chained comparison also fails for NaN and infinity, so one test serves both directions.
_MIN_EXACT_FLOAT = -(2.0**63)
_MAX_EXACT_FLOAT = 2.0**64

# The codec itself reports values of these types that it refuses.
_EXACT_LEAVES = frozenset({str, int, bool, type(None)})


class Decline(Exception):
    """The value may need a conversion."""


def vetted(value: Any) -> Any:
    """Return the value itself if it consists of exact JSON values.

    Raises:
        Decline: The value consists of something else, or is too deep or suspiciously large.
    """
    _vet((value,), MAX_DEPTH)
    return value


def _vet(members: Iterable[Any], levels: int) -> int:
    """Check the members of a container, and return the number of containers in it."""
    inside = 0
    for member in members:
        kind = type(member)
        if kind is str:
            continue
        if kind is dict or kind is list:
            if not levels:
                raise Decline
            inside += 1
            values = member.values() if kind is dict else member
            # Most dicts hold only text, and need no recursive call.
            for leaf in values:
                if type(leaf) is not str:
                    inside += _vet(values, levels - 1)
                    break
        elif kind is float:
            if not _MIN_EXACT_FLOAT < member < _MAX_EXACT_FLOAT:
                raise Decline
        elif kind not in _EXACT_LEAVES:
            raise Decline
    if inside > MANY_CONTAINERS:
        raise Decline
    return inside


def convert_to_json(
    value: Any,
    *,
    subject: str,
    large_int: Callable[[str], Any] | None = None,
    members_of: Callable[[Any], Any] | None = None,
    max_depth: int = MAX_DEPTH,
) -> Any:
    """Convert a value to a copy that consists of JSON values.

    A tuple becomes a list, and an enum member its value. With `members_of`, Decimals, dates, times
    and UUIDs become text, and attrs classes and dataclasses become dicts. Sets, bytes and other
    objects are problems. No object is written as its `str()`.

    Args:
        value: The value.
        subject: Name of the value, for the error.
        large_int: Function that converts the digits of an integer over 64 bits. Without it, the
            integer is kept.
        members_of: Function that returns the members of an attrs or dataclass instance.
        max_depth: Maximum nesting of containers.

    Raises:
        ModelError: JSON cannot represent some part. The error lists every such part.
    """
    conversion = _Conversion(subject, large_int, members_of)
    plain = None
    try:
        plain = rebuild(
            value, conversion.visit, max_depth=max_depth, unroll=True, stop=conversion.stop
        )
    except RecursionError:
        conversion.note((), "nested too deeply")
    if conversion.problems:
        raise ModelError(conversion.problems, subject=subject)
    return plain


class _Conversion:
    """One running conversion with its problems so far."""

    def __init__(
        self,
        subject: str,
        large_int: Callable[[str], Any] | None,
        members_of: Callable[[Any], Any] | None,
    ) -> None:
        self.problems: list[Problem] = []
        self._subject = subject
        self._large_int = large_int
        self._members_of = members_of

    def note(self, frames: Sequence[Frame], problem: str) -> None:
        self.problems.append((format_path(frame.key() for frame in frames), problem))

    def stop(self, problem: str, marker: str, frames: Sequence[Frame]) -> None:
        self.note(frames[:1] if marker is TOO_LARGE else frames, problem)
        if marker is TOO_LARGE:
            raise ModelError(self.problems, subject=self._subject)

    def visit(self, value: Any, frames: Sequence[Frame]) -> Any:
        if frames and (keys := frames[-1].keys) is not None:
            key = keys[frames[-1].at]
            if not isinstance(key, str) or isinstance(key, enum.Enum):
                problem = f"expected str keys, got the {type_name(key)} key {short(key)}"
                return self.note(frames[:-1], problem)
            keys[frames[-1].at] = self._text(key, frames, 1)
        return self._value(value, frames)

    def _value(self, value: Any, frames: Sequence[Frame]) -> Any:
        """Return the JSON value.

        Subclasses of JSON's types are read through the base class, so that no foreign code runs.
        """
        if value is None or value is True or value is False:
            return value
        if issubclass(type(value), (dict, list)):
            return value
        if isinstance(value, enum.Enum):
            return self._value(value.value, frames)
        if isinstance(value, str):
            return self._text(value, frames)
        if isinstance(value, int):
            return self._integer(int.__int__(value), frames)
        if isinstance(value, float):
            number = float.__float__(value)
            if math.isfinite(number):
                return number
            return self.note(frames, f"{number!r} is not a JSON number")
        if isinstance(value, tuple):
            return list(value)
        if self._members_of is not None:
            return self._converted(value, frames, self._members_of)
        return self.note(frames, f"expected a JSON value, got {type_name(value)}")

    def _converted(
        self, value: Any, frames: Sequence[Frame], members_of: Callable[[Any], Any]
    ) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Decimal):
            if value.is_finite():
                return str(value)
            return self.note(frames, f"{value!r} is not a JSON number")
        if isinstance(value, datetime):
            try:
                return aware(value).isoformat()
            except (OverflowError, OSError, ValueError):
                return self.note(frames, f"{short(value)} is too far away to have a time zone")
        if isinstance(value, (date, time)):
            return value.isoformat()
        # A UUID exists only if its module was imported, and importing it here would take time.
        if (uuid := sys.modules.get("uuid")) is not None and isinstance(value, uuid.UUID):
            return str(value)
        if not isinstance(value, type) and (
            attrs.has(type(value)) or dataclasses.is_dataclass(value)
        ):
            return members_of(value)
        return self.note(frames, f"expected a JSON value, got {type_name(value)}")

    def _text(self, value: str, frames: Sequence[Frame], above: int = 0) -> str:
        text = str.__str__(value)
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                where = frames[: len(frames) - above]
                self.note(
                    where,
                    f"half a surrogate pair at character {error.start}, which JSON cannot hold",
                )
        return text

    def _integer(self, value: int, frames: Sequence[Frame]) -> Any:
        if -(2**63) <= value < 2**64:
            return value
        if value.bit_length() > _MAX_BITS:
            return self.note(frames, f"an int of more than {MAX_DIGITS} digits")
        if self._large_int is None:
            return value
        try:
            return self._large_int(str(value))
        # The interpreter may be configured with a lower limit than ours.
        except ValueError as error:
            return self.note(frames, str(error))


def aware(moment: datetime) -> datetime:
    """Return the same moment with a UTC offset. A moment without one is read as local time."""
    return moment if moment.utcoffset() is not None else moment.astimezone()


# ── the wording of problems ──────────────────────────────────────────────────────────────────────

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 60


def short(value: object) -> str:
    """Return a `repr` that fits on a line for any value."""
    return _shortened.repr(value)


def type_name(value: object) -> str:
    return "None" if value is None else type(value).__name__
