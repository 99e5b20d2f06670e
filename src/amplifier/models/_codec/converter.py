"""The one converter between models and JSON: `to_json`, `from_json`, `to_dict`, `from_dict`.

A model's JSON has its declared fields in order, then its unknown members in theirs; a field whose default is None is
left out when it is None. Decimals are text, times are ISO 8601 with an offset. Integers are exact up to 4300 digits.
NaN, infinities, halves of surrogate pairs and keys that are not str are refused in both directions. Free-form values
nest at most 100 levels. Of duplicate keys in a text the last one counts: no fast codec reports them, and finding them
would cost more than the parsing. Reading a text that was written here and writing it again gives the same text.

orjson is the codec because it writes twice as fast as msgspec and reads as fast. What it cannot hold exactly, integers
over 64 bits, is noticed and converted with the standard library.

Every function tries the generated code first (`fast_reader`, `fast_writer`), which takes a fifth of the time, and leaves
what is not of the exact type to the complete one (`strict_reader`, `plain_values`). What is neither a model nor a JSON
value is left to cattrs (`foreign_classes`): other attrs classes, dataclasses, enums.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, overload

import orjson

from amplifier.errors import ModelError
from amplifier.models._definition.base import Model
from amplifier.models._definition.field_types import MAX_DIGITS
from amplifier.models._definition.problems import class_text, type_name

from .fast_reader import READERS
from .fast_writer import encode
from .plain_values import STRICTLY, Decline, JsonConversion, vetted

T = TypeVar("T")
Text: TypeAlias = str | bytes | bytearray | memoryview

# ── the public functions ─────────────────────────────────────────────────────────────────────────


def to_json(obj: Any) -> str:
    """The JSON text of a model, or of a JSON value with models anywhere inside it.

    Raises:
        ModelError: JSON cannot hold something in it; every such place is listed.
    """
    try:
        text = _encode(obj)
    except (Decline, TypeError, RecursionError):
        text = orjson.dumps(_json_values(obj, large_int=orjson.Fragment), None, STRICTLY)
    return text.decode()


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
        return READERS[cls](orjson.loads(text))
    except Decline:
        return _read_completely(cls, _parsed_exactly(cls, text))
    except orjson.JSONDecodeError as error:
        return _read_completely(cls, _parsed_despite(cls, text, error))


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
        return orjson.loads(_encode(obj))  # the codec checks and copies faster than any walk in Python
    except (Decline, TypeError, RecursionError):
        return _json_values(obj, large_int=None)


@overload
def from_dict(cls: type[T], data: Any) -> T: ...
@overload
def from_dict(cls: Any, data: Any) -> Any: ...
def from_dict(cls: Any, data: Any) -> Any:
    """The same as `from_json`, from JSON values instead of text; nothing in them is shared with the model.

    Raises:
        ModelError: The values do not fit, or are no JSON values; everything wrong with them is listed.
    """
    try:
        return READERS[cls](orjson.loads(orjson.dumps(vetted(data), None, STRICTLY)))
    except (Decline, TypeError, RecursionError):
        return _read_completely(cls, data)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def _encode(obj: Any) -> bytes:
    """The JSON text of what is of the exact types.

    Raises:
        Decline: Something is not.
        TypeError: By orjson, for an integer over 64 bits, half a surrogate pair, a key that is not a str.
    """
    return encode(obj) if isinstance(obj, Model) else orjson.dumps(vetted(obj), None, STRICTLY)


def _json_values(obj: Any, large_int: Callable[[str], Any] | None) -> Any:
    conversion = JsonConversion(large_int=large_int, foreign=lambda value: _foreign_classes().unstructured(value))
    plain = conversion.convert(obj)
    conversion.finish(f"{type_name(obj)} cannot be written as JSON")
    return plain


def _foreign_classes() -> Any:
    """cattrs, and pathlib and much else behind it, are a fifth of importing the package; few programs need them."""
    from . import foreign_classes  # noqa: PLC0415 — see above

    return foreign_classes


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def _read_completely(cls: Any, data: Any) -> Any:
    return _foreign_classes().structured(cls, data)


def _parsed_despite(cls: Any, text: Text, error: orjson.JSONDecodeError) -> Any:
    """Text that orjson refuses: either not JSON, or JSON with an integer it cannot hold even as a float."""
    if not isinstance(text, (str, bytes, bytearray, memoryview)):
        raise ModelError([("", f"expected JSON text as str or bytes, got {type_name(text)}")], subject=class_text(cls))
    character = error.doc[error.pos : error.pos + 1]
    if character and character in "-0123456789":
        return _parsed_exactly(cls, text)
    raise ModelError([("", f"not valid JSON: {error}")], subject=class_text(cls)) from None


def _parsed_exactly(cls: Any, text: Text) -> Any:
    """Parse with the standard library, slower but with integers of any size."""
    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8")
        return json.loads(decoded, parse_int=_integer, parse_constant=_no_constant)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:
        problem = f"not valid JSON: {error}"
    raise ModelError([("", problem)], subject=class_text(cls))


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:
        raise ValueError(f"an integer of {len(digits)} digits, more than {MAX_DIGITS}")
    return int(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
