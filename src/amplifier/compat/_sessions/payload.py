"""Event payloads as published handlers know them: JSON, with everything else turned into text.

The published kernel writes every payload as JSON and reads it back, so handlers never get an object of the emitter: a
`Usage` arrives as its text, a tuple as a list, keys in alphabetical order. Published loops and loggers rely on that.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def json_shaped(data: Any) -> Any:
    """A copy of a payload made of JSON values only.

    Raises:
        TypeError: A key is neither text nor a scalar.
        ValueError: The payload contains itself.
        RuntimeError: It holds what JSON cannot represent: NaN, an infinity, a lone surrogate.
    """
    text = json.dumps(_plain(data), default=str)
    return json.loads(text, object_pairs_hook=_sorted, parse_int=_integer, parse_constant=_refuse)


def _plain(data: Any) -> Any:
    """A model as its dict; anything else as it is."""
    dump = None if isinstance(data, dict) else getattr(data, "model_dump", None)
    if dump is None:
        return data
    try:
        return dump(mode="json")
    except TypeError:  # a third-party model_dump, without the keyword
        return dump()


def _sorted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, value in pairs:
        _check_text(key)
        _check_text(value)
        if type(value) is list:
            for item in value:
                _check_text(item)
    return dict(sorted(pairs))


def _check_text(value: Any) -> None:
    if type(value) is str and not value.isascii() and (found := _LONE_SURROGATE.search(value)):
        raise RuntimeError(f"Invalid JSON: lone surrogate {found[0]!r} in a text of the payload")


def _integer(digits: str) -> int | float:
    value = int(digits)
    return value if _SMALLEST <= value <= _LARGEST else float(value)


def _refuse(constant: str) -> Any:
    raise RuntimeError(f"Invalid JSON: {constant} cannot be part of an event's payload")
