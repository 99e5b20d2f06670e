"""Models to JSON and back: `to_json`, `from_json`, `to_dict`, `from_dict`.

A model's JSON has its declared fields in order, then its unknown members in theirs; a field whose default is None is
left out when it is None. Decimals are text, times are ISO 8601 with an offset. Integers are exact up to 4300 digits.
NaN, infinities, halves of surrogate pairs and keys that are not str are refused in both directions. A text nests at most
120 levels. Of duplicate keys in a text the last one counts: no fast codec reports them, and finding them
would cost more than the parsing. Reading a text that was written here and writing it again gives the same text.

orjson is the codec because it writes twice as fast as msgspec and reads as fast. What it cannot hold exactly, integers
over 64 bits, is noticed and converted with the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, overload

import orjson

from amplifier._json._values import MAX_DIGITS, Decline, convert_to_json, type_name, vetted
from amplifier.errors import ModelError

from ._base import Model, converter_module

T = TypeVar("T")
Text: TypeAlias = str | bytes | bytearray | memoryview

_STRICTLY = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""The codec refuses what it would otherwise write by rules of its own."""


def to_json(obj: Any) -> str:
    """The JSON text of a model, or of a JSON value with models anywhere inside it.

    Raises:
        ModelError: JSON cannot hold something in it; every such place is listed.
    """
    try:
        return _encode(obj).decode()
    except (Decline, TypeError, RecursionError):
        return orjson.dumps(_json_values(obj, large_int=orjson.Fragment), None, _STRICTLY).decode()


@overload
def from_json(cls: type[T], text: Text) -> T: ...
@overload
def from_json(cls: Any, text: Text) -> Any: ...  # unions and the like, which are no classes
def from_json(cls: Any, text: Text) -> Any:
    """Read a model, or any type made of models such as ``list[Message]``, from JSON text.

    Raises:
        ModelError: The text is not JSON or does not fit; everything wrong with it is listed.
    """
    try:
        data = vetted(orjson.loads(text))
    except (Decline, RecursionError, orjson.JSONDecodeError):  # integers that the codec cannot hold, or no JSON
        data = _parsed_exactly(str(getattr(cls, "__name__", cls)), text)
    return converter_module().structure(cls, data)


@overload
def to_dict(obj: Model) -> dict[str, Any]: ...
@overload
def to_dict(obj: Any) -> Any: ...
def to_dict(obj: Any) -> Any:
    """The same as `to_json`, as JSON values instead of text; nothing in them is shared with the model.

    Raises:
        ModelError: JSON cannot hold something in it; every such place is listed.
    """
    try:
        return orjson.loads(_encode(obj))  # the codec copies faster than any walk in Python
    except (Decline, TypeError, RecursionError):
        return _json_values(obj)


@overload
def from_dict(cls: type[T], data: Any) -> T: ...
@overload
def from_dict(cls: Any, data: Any) -> Any: ...
def from_dict(cls: Any, data: Any) -> Any:
    """The same as `from_json`, from JSON values instead of text; nothing in them is shared with the model.

    Raises:
        ModelError: The values do not fit, or are no JSON values; everything wrong with them is listed.
    """
    return converter_module().structure(cls, to_dict(data))


def _encode(obj: Any) -> bytes:
    """The JSON text of what consists of exact JSON values, once models are dicts.

    Raises:
        Decline: It does not.
        TypeError: By orjson, for an integer over 64 bits, half a surrogate pair, a key that is not a str.
    """
    if isinstance(obj, Model):
        obj = converter_module().converter().unstructure(obj)
    return orjson.dumps(vetted(obj), None, _STRICTLY)


def _json_values(obj: Any, large_int: Callable[[str], Any] | None = None) -> Any:
    subject = f"{type_name(obj)} cannot be written as JSON"
    return convert_to_json(
        obj, subject=subject, large_int=large_int, members_of=lambda it: converter_module().members_of(it)
    )


def _parsed_exactly(subject: str, text: Text) -> Any:
    """Parse with the standard library, slower but with integers of any size."""
    if not isinstance(text, (str, bytes, bytearray, memoryview)):
        raise ModelError([("", f"expected JSON text as str or bytes, got {type_name(text)}")], subject=subject)
    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8")
        parsed = json.loads(decoded, parse_int=_integer, parse_constant=_no_constant)
    except RecursionError:
        raise ModelError([("", "nested too deeply")], subject=subject) from None
    except ValueError as error:
        raise ModelError([("", f"not valid JSON: {error}")], subject=subject) from None
    return convert_to_json(parsed, subject=subject)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:
        raise ValueError(f"an integer of {len(digits)} digits, more than {MAX_DIGITS}")
    return int(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
