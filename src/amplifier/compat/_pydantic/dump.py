"""`model_dump` and `model_dump_json`: models as dicts and as text, by pydantic's rules.

Declared fields in order, None included, then unknown members. In Python form lists, tuples, sets and dicts are copied,
models and dataclasses become dicts, and everything else is passed through; in JSON form it becomes what JSON has. What
our models add to the published ones is left out while it is empty.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import PurePath
from types import GeneratorType
from typing import Any, Final
from uuid import UUID

import attrs
import orjson

from amplifier.models import ResponseFormatJsonSchema, ToolResult
from amplifier.models._base import Model, OpenModel, declared_fields, is_required

from .errors import serialization_error
from .fields import OURS, default_of

_MISSING: Final = object()
_ATOMS: Final = frozenset({str, int, bool, type(None)})
_ALIASES: Final = {(ResponseFormatJsonSchema, "json_schema"): "schema"}
_LEFT_OUT_WHEN_EMPTY: Final = {(ToolResult, "content"), *OURS}
_SOMETIMES_LEFT_OUT: Final = frozenset(name for _, name in _LEFT_OUT_WHEN_EMPTY)


def dump(model: Model, rules: Rules, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """A model as a dict.

    Raises:
        ValueError: In JSON form, something in it is not JSON; or it contains itself.
    """
    try:
        return rules.model(model, _Choice(include, exclude))
    except RecursionError:
        raise ValueError("Circular reference detected (id repeated)") from None


def dump_text(
    model: Model, rules: Rules, include: Any, exclude: Any, indent: int | None, *, ensure_ascii: bool = False
) -> str:
    """A model as JSON text.

    Raises:
        ValueError: Something in it is not JSON, or it contains itself.
    """
    plain = dump(model, rules, include, exclude)
    if indent is None and not ensure_ascii:
        try:
            return orjson.dumps(plain).decode()
        except orjson.JSONEncodeError:
            pass  # an int over 64 bits, or a text with half a surrogate pair
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii, separators=separators)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise serialization_error(f"Error serializing to JSON: UnicodeEncodeError: {error}") from None
    return text


@attrs.frozen(kw_only=True)
class Rules:
    """How to dump: the arguments of `model_dump` that hold all the way down."""

    is_json: bool = False
    by_alias: bool = False
    exclude_defaults: bool = False
    exclude_none: bool = False
    fallback: Callable[[Any], Any] | None = None

    def model(self, model: Model, choice: _Choice) -> dict[str, Any]:
        """One of our models."""
        cls = type(model)
        dumped: dict[str, Any] = {}
        for field in declared_fields(cls):
            value = getattr(model, field.name, _MISSING)
            chosen = choice.of(field.name)
            if value is _MISSING or chosen is None or self._is_left_out(model, field, value):
                continue
            name = _alias(cls, field.name) if self.by_alias else field.name
            dumped[name] = value if type(value) in _ATOMS else self._field(model, field, value, chosen)
        if isinstance(model, OpenModel):
            declared = {field.name for field in declared_fields(cls)}
            for name, value in model.extra.items():
                chosen = choice.of(name)
                if chosen is None or name in declared or (self.exclude_none and value is None):
                    continue
                dumped[name] = self.value(value, chosen)
        return model._in_order(dumped)

    def _is_left_out(self, model: Model, field: attrs.Attribute[Any], value: Any) -> bool:
        if value is None and self.exclude_none:
            return True
        if self.exclude_defaults and not is_required(field) and value == default_of(field):
            return True
        if value or field.name not in _SOMETIMES_LEFT_OUT:
            return False
        return any(isinstance(model, cls) and name == field.name for cls, name in _LEFT_OUT_WHEN_EMPTY)

    def _field(self, model: Model, field: attrs.Attribute[Any], value: Any, choice: _Choice) -> Any:
        if field.name == "cost_usd" and isinstance(value, Decimal):
            return str(value)  # in both forms: loops put the dump into events
        if field.name == "content" and isinstance(model, ToolResult) and isinstance(value, list):
            blocks = attrs.evolve(self, exclude_none=True)
            return [blocks.value(block, _EVERYTHING) for block in value]
        if type(value) is float and field.type is not Any:
            return value  # even NaN; the text has null for it, and free-form values have None in JSON form
        return self.value(value, choice)

    def value(self, value: Any, choice: _Choice) -> Any:
        """Anything that is a field or inside one."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if isinstance(value, Model):
            return self.model(value, choice)
        if isinstance(value, dict):
            return {
                self._key(key): self.value(member, chosen)
                for key, member in value.items()
                if (chosen := choice.of(key)) is not None
            }
        if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            return self._members(value, choice)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return {name: self.value(member, _EVERYTHING) for name, member in fields.items()}
        if hasattr(kind, "__pydantic_serializer__"):
            return value.model_dump(
                mode="json" if self.is_json else "python", by_alias=self.by_alias, exclude_none=self.exclude_none
            )
        return self._json_leaf(value) if self.is_json else value

    def _members(self, value: Any, choice: _Choice) -> Any:
        members = [
            self.value(member, chosen) for index, member in enumerate(value) if (chosen := choice.of(index)) is not None
        ]
        if self.is_json or isinstance(value, list):
            return members
        for kind in (tuple, set, frozenset):
            if isinstance(value, kind):
                return kind(members)
        return collections.deque(members, value.maxlen)

    def _json_leaf(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return self.value(value.value, _EVERYTHING)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value) if math.isfinite(value) else None
        for kind, write in _JSON_WRITERS:
            if isinstance(value, kind):
                return write(value)
        if isinstance(value, GeneratorType):
            return [self.value(member, _EVERYTHING) for member in value]
        if self.fallback is not None:
            return self.value(self.fallback(value), _EVERYTHING)
        raise serialization_error(f"Unable to serialize unknown type: {type(value)}")

    def _key(self, key: Any) -> Any:
        if not self.is_json or type(key) is str:
            return key
        if isinstance(key, bool):
            return "true" if key else "false"
        if isinstance(key, tuple):
            return ",".join(str(self._key(part)) for part in key)
        return str(key if key is None else self._json_leaf(key))


def _alias(cls: type[Model], name: str) -> str:
    return next((alias for (owner, field), alias in _ALIASES.items() if field == name and issubclass(cls, owner)), name)


def _moment_text(moment: datetime | time) -> str:
    """ISO 8601 with ``Z`` for UTC, as pydantic writes it."""
    return re.sub(r"\+00:00$", "Z", moment.isoformat())


_JSON_WRITERS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (Decimal, str),
    ((datetime, time), _moment_text),
    (date, date.isoformat),
    ((bytes, bytearray), lambda value: value.decode()),
    ((PurePath, UUID), str),
)


class _Choice:
    """``include`` or ``exclude`` for the members of one model: names, or a dict with rules for their members."""

    __slots__ = ("_exclude", "_include")

    def __init__(self, include: Any = None, exclude: Any = None) -> None:
        self._include = include
        self._exclude = exclude

    def of(self, name: Any) -> _Choice | None:
        """The choice for a member's own members; None if the member itself is not wanted."""
        if self._include is None and self._exclude is None:
            return self
        excluded = _rule(self._exclude, name)
        included = True if self._include is None else _rule(self._include, name)
        if excluded is True or included is None:
            return None
        return _Choice(None if included is True else included, excluded)


def _rule(chosen: Any, name: Any) -> Any:
    """The rule for a member: True for all of it, None for nothing of it, or the rules for its members."""
    if chosen is None or name not in chosen:
        return None
    deeper = chosen[name] if isinstance(chosen, Mapping) else True
    return True if deeper is ... else deeper or None


_EVERYTHING: Final = _Choice()
