"""Warns about a keyword that a model does not know and that is nearly the name of one of its fields.

Constructors call this only when they were given a keyword they do not know. Models that this package builds from data (JSON, dicts
inside of other models, stored messages) never warn: what a service calls its members is no mistake in the program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from amplifier._spelling import misspelt, warn_caller

if TYPE_CHECKING:
    from .base import Model

_OURS = "amplifier."
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
    if not Misspellings.are_reported or _is_built_by_us(sys._getframe(1)):
        return
    fields = frozenset(field.name for field in cls.__model_fields_of__)
    for name in unknown:
        meant = None if name.startswith("_") else misspelt(name, fields)
        if meant is not None:
            is_kept = hasattr(cls, "extra") and "extra" not in fields
            lot = "kept as an extra member" if is_kept else "ignored"
            warn_caller(
                f"{cls.__name__} has no field {name!r}, so it is {lot}; did you mean {meant!r}?", _MODELS, "attr."
            )


def _is_built_by_us(constructor: FrameType) -> bool:
    """Whether a constructor was called by code of this package; a type checker has read the keywords written there."""
    frame: FrameType | None = constructor
    while frame is not None and frame.f_code.co_name == "__init__" and _module(frame).startswith(_MODELS):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith(_OURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", _MODELS))  # generated constructors have no name
