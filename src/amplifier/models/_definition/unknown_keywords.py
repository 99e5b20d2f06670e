"""Warns about a keyword that a model does not know and that is nearly the name of one of its fields.

Constructors call this only when they were given a keyword they do not know. Models that this package builds from data (JSON, dicts
inside of other models, stored messages) never warn: the member names of a service are no mistake in the program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, ClassVar

from amplifier._spelling import did_you_mean, misspelt, warn_caller

from .base import Model, OpenModel

_OURS = "amplifier."
_MODELS = "amplifier.models."


class Misspellings:
    """Whether misspelt keywords are warned about in this process.

    Attributes:
        are_reported: False while the alias of the published kernel is installed: its models do not report unknown keywords, and
            they are these very classes.
    """

    are_reported: ClassVar[bool] = True


def warn_about_misspelt(cls: type[Model], unknown: Mapping[str, Any]) -> None:
    """Warn about the misspelt ones among the unknown keywords of a constructor, at the line that called it."""
    if not Misspellings.are_reported or _is_built_by_us(sys._getframe(1)):
        return
    fields = frozenset(field.name for field in cls.__model_fields_of__)
    fate = "kept as an extra member" if issubclass(cls, OpenModel) else "ignored"
    for name in unknown:
        meant = None if name.startswith("_") else misspelt(name, fields)
        if meant is not None:
            warn_caller(
                f"{cls.__name__} has no field {name!r}, so it is {fate}; {did_you_mean(meant)}", _MODELS, "attr."
            )


def _is_built_by_us(constructor: FrameType) -> bool:
    """Whether a constructor was called by code of this package; a type checker has read the keywords written there."""
    frame: FrameType | None = constructor
    while frame is not None and frame.f_code.co_name == "__init__" and _module(frame).startswith(_MODELS):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith(_OURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", _MODELS))  # generated constructors have no name
