"""Warns about a keyword that a model does not know and that is nearly the name of one of its fields.

Constructors call this only when they were given a keyword they do not know. Models that are built from data (JSON, dicts inside of
other models) never warn: what a stored message or a service calls its members is no mistake in the program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from .._spelling import misspelt, warn_caller

if TYPE_CHECKING:
    from ._base import Model

_MODELS = "amplifier.models."


class Misspellings:
    """Whether misspelt keywords are warned about in this process.

    Attributes:
        are_reported: False while the alias of the published kernel is installed: its models say nothing about keywords they do
            not know, and they are these very classes.
    """

    are_reported: ClassVar[bool] = True


def look_at_unknown(cls: type[Model], unknown: Mapping[str, Any]) -> None:
    """Warn about those of the unknown keywords of a constructor that are misspelt, at the line that called it."""
    if not Misspellings.are_reported or _is_data(sys._getframe(1)):
        return
    fields = frozenset(field.name for field in cls.__model_fields_of__)
    for name in unknown:
        meant = None if name.startswith("_") else misspelt(name, fields)
        if meant is not None:
            lot = "kept as an extra member" if hasattr(cls, "extra") else "ignored"
            warn_caller(
                f"{cls.__name__} has no field {name!r}, so it is {lot}; did you mean {meant!r}?", _MODELS, "attr."
            )


def _is_data(constructor: FrameType) -> bool:
    """Whether a constructor was called by our own code, which builds models from data."""
    frame: FrameType | None = constructor
    while frame is not None and (frame.f_code.co_name == "__init__" and _is_ours(frame)):
        frame = frame.f_back
    return frame is not None and _is_ours(frame)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", _MODELS)).startswith(_MODELS)
