"""Models to JSON and back: `to_json`, `from_json`, `to_dict`, `from_dict`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, overload

import orjson

from amplifier._internal.json import JSON
from amplifier._internal.json.values import MAX_DIGITS, Decline, convert_to_json, type_name, vetted
from amplifier.errors import ModelError

from .base import Model

T = TypeVar("T")
Text: TypeAlias = str | bytes | bytearray | memoryview

# A model's JSON has its declared fields in order, then its unknown members in theirs. A field with
# the default None is left out when it is None. Decimals are text, and times are ISO 8601 with an
# offset. Integers are exact up to 4300 digits. NaN, infinities, half surrogate pairs and keys that
# are not str are refused in both directions. A text nests at most 120 levels. The last of duplicate
# keys counts: no fast codec reports them, and finding them would cost more than parsing. A text
# that was written here stays the same when it is read and written again.
#
# orjson is the codec because it writes twice as fast as msgspec and reads as fast. It cannot hold
# integers over 64 bits, so a value with one goes through the standard library.

# Refuse everything that the codec would write by its own rules.
_STRICTLY = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
_STRICTLY |= orjson.OPT_PASSTHROUGH_DATETIME


def to_json(obj: Any) -> str:
    """Return the JSON text of a model, or of a JSON value with models anywhere inside it.

    Raises:
        ModelError: JSON cannot hold a value in it. Every such place is listed.
    """
    try:
        return _encode(obj).decode()
    except (Decline, TypeError, RecursionError):
        return orjson.dumps(_to_plain(obj, orjson.Fragment), None, _STRICTLY).decode()


@overload
def from_json(cls: type[T], text: Text) -> T: ...
@overload
def from_json(cls: Any, text: Text) -> Any: ...  # unions, for example
def from_json(cls: Any, text: Text) -> Any:
    """Read a model, or any type made of models such as ``list[Message]``, from JSON text.

    Raises:
        ModelError: The text is not JSON, or does not fit. Every problem is listed.
    """
    try:
        data = vetted(orjson.loads(text))
    except (Decline, RecursionError, orjson.JSONDecodeError):
        # The text is not JSON, or has an integer beyond the codec's range.
        data = _parse_exactly(str(getattr(cls, "__name__", cls)), text)
    return _structure(cls, data)


@overload
def to_dict(obj: Model) -> dict[str, Any]: ...
@overload
def to_dict(obj: Any) -> Any: ...
def to_dict(obj: Any) -> Any:
    """Return the JSON values that `to_json` writes. They share nothing with the model.

    Raises:
        ModelError: JSON cannot hold a value in it. Every such place is listed.
    """
    try:
        # The codec copies faster than any walk in Python.
        return orjson.loads(_encode(obj))
    except (Decline, TypeError, RecursionError):
        return _to_plain(obj)


@overload
def from_dict(cls: type[T], data: Any) -> T: ...
@overload
def from_dict(cls: Any, data: Any) -> Any: ...
def from_dict(cls: Any, data: Any) -> Any:
    """Read a model from JSON values, as `from_json` does from text. The model shares none of them.

    Raises:
        ModelError: The values are not JSON, or do not fit. Every problem is listed.
    """
    return _structure(cls, to_dict(data))


# Importing the converter takes longer than importing this package, so the first call does it.


def _structure(cls: object, data: JSON) -> Any:
    from ._converter import structure  # noqa: PLC0415

    return structure(cls, data)


def _encode(obj: object) -> bytes:
    """Return the JSON text of a value that holds exact JSON values once models are dicts.

    Raises:
        Decline: The value may hold another.
        TypeError: The codec refuses an integer over 64 bits, a lone surrogate or a key.
    """
    if isinstance(obj, Model):
        from ._converter import converter  # noqa: PLC0415

        obj = converter().unstructure(obj)
    return orjson.dumps(vetted(obj), None, _STRICTLY)


def _to_plain(obj: object, large_int: Callable[[str], object] | None = None) -> JSON:
    from ._converter import members_of  # noqa: PLC0415

    subject = f"{type_name(obj)} cannot be written as JSON"
    return convert_to_json(obj, subject=subject, large_int=large_int, members_of=members_of)


def _parse_exactly(subject: str, text: Any) -> JSON:
    """Parse with the standard library, which is slower and reads integers of any size."""
    if not isinstance(text, (str, bytes, bytearray, memoryview)):
        problem = f"expected JSON text as str or bytes, got {type_name(text)}"
        raise ModelError([("", problem)], subject=subject)
    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8")
        parsed = json.loads(decoded, parse_int=_read_integer, parse_constant=_refuse_constant)
    except RecursionError:
        raise ModelError([("", "nested too deeply")], subject=subject) from None
    except ValueError as error:
        raise ModelError([("", f"not valid JSON: {error}")], subject=subject) from None
    return convert_to_json(parsed, subject=subject)


def _read_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:
        raise ValueError(f"an integer of {len(digits)} digits, more than {MAX_DIGITS}")
    return int(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
