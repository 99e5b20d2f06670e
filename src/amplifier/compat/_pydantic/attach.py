"""Putting the face on our base classes and taking it off again, with nothing left behind.

The generated constructors and readers are made
anew both times, because they are written for classes with or without rules for assignments.
"""

from __future__ import annotations

from typing import Any, Final

from amplifier.models._codec.fast_reader import READERS
from amplifier.models._definition.base import Model, OpenModel
from amplifier.models._definition.constructor import lazy_init
from amplifier.models._definition.unknown_keywords import Misspellings

from .errors import GENERATED, convert_errors, keep_errors
from .methods import FACE

_ABSENT: Final = object()
_before: Final[list[tuple[type, str, Any]]] = []


def attach() -> None:
    """Give our models the published form."""
    for cls, members in FACE.items():
        for name, member in members.items():
            _before.append((cls, name, cls.__dict__.get(name, _ABSENT)))
            setattr(cls, name, member)
    Misspellings.are_reported = False
    convert_errors()
    _forget_generated_code()


def detach() -> None:
    """Take the published form away."""
    keep_errors()
    Misspellings.are_reported = True
    while _before:
        cls, name, member = _before.pop()
        if member is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, member)
    _forget_generated_code()


def _forget_generated_code() -> None:
    READERS.clear()
    for cls in _below(OpenModel):
        if cls.__dict__.get("__init__") is not None and _is_generated(cls.__dict__["__init__"]):
            cls.__init__ = lazy_init(cls)  # type: ignore[method-assign]


def _below(cls: type[Model]) -> list[type[Model]]:
    return [below for child in cls.__subclasses__() for below in (child, *_below(child))]


def _is_generated(init: Any) -> bool:
    return str(init.__code__.co_filename).startswith(GENERATED)
