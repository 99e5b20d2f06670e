"""Paths into a value and the wording of what is wrong at them.

Paths are linked pairs and become text only when something is wrong, because nearly always nothing is.
"""

from __future__ import annotations

import reprlib
import typing
from typing import Any

from amplifier._json import format_path

Path = tuple[Any, "str | int"] | None
"""``None`` for the whole value, else (path of the parent, key or index)."""

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 60


def short(value: object) -> str:
    """A repr that fits on a line, whatever the value is."""
    return _shortened.repr(value)


def type_name(value: object) -> str:
    return "None" if value is None else type(value).__name__


def class_text(cls: Any) -> str:
    """A class, or a type made of classes, as errors name it."""
    return str(getattr(cls, "__name__", cls)) if typing.get_origin(cls) is None else str(cls)


def path_text(path: Path) -> str:
    """The path as errors write it: ``content[2].text``."""
    parts: list[str | int] = []
    while path is not None:
        path, key = path
        parts.append(key)
    return format_path(reversed(parts))


def join_paths(outer: str, inner: str) -> str:
    if not outer or not inner:
        return outer or inner
    return f"{outer}{inner}" if inner.startswith("[") else f"{outer}.{inner}"
