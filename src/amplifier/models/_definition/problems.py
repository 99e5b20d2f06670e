"""Where a value stands, what is wrong with it, and the rules that differ between building and reading.

Below everything else in this room. `Building` is what a model's constructor uses; `_reading.Reading` overrides it
with the rules of JSON. Paths are linked pairs and become text only when something is wrong, because nearly
always nothing is.
"""

from __future__ import annotations

import reprlib
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from amplifier._json import format_path
from amplifier.errors import ModelError, Problem

if TYPE_CHECKING:
    from .base import Model

Path = tuple[Any, "str | int"] | None
"""``None`` for the whole value, else (path of the parent, key or index)."""

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 60


def short(value: object) -> str:
    """A repr that fits on a line, whatever the value is."""
    return _shortened.repr(value)


def type_name(value: object) -> str:
    return "None" if value is None else type(value).__name__


def path_text(path: Path) -> str:
    """The path as our errors write it: ``content[2].text``."""
    parts: list[str | int] = []
    while path is not None:
        path, key = path
        parts.append(key)
    return format_path(reversed(parts))


def join_paths(outer: str, inner: str) -> str:
    if not outer or not inner:
        return outer or inner
    return f"{outer}{inner}" if inner.startswith("[") else f"{outer}.{inner}"


class Building:
    """One construction under way: notes problems, and takes free-form values as they are.

    Attributes:
        problems: What is wrong so far, in reading order.
    """

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def note(self, path: Path, problem: str) -> None:
        self.problems.append((path_text(path), problem))

    def adopt(self, error: ModelError, path: Path) -> None:
        """Take over the problems of a part that was built on its own."""
        outer = path_text(path)
        self.problems.extend((join_paths(outer, inner), problem) for inner, problem in error.problems)

    def finish(self, subject: str) -> None:
        """Raise everything noted, at once.

        Raises:
            ModelError: There was something.
        """
        if self.problems:
            raise ModelError(self.problems, subject=subject)

    # What follows is where JSON has stricter rules than construction.

    def text(self, value: str, path: Path) -> str:
        return value

    def integer(self, value: int, path: Path) -> int | None:
        return value

    def number(self, value: float, path: Path) -> float | None:
        return value

    def free(self, value: Any, path: Path) -> Any:
        """A value of any type: shared, never looked into."""
        return value

    def free_dict(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any] | None:
        return dict(value)

    def free_list(self, value: Iterable[Any], path: Path) -> list[Any] | None:
        return list(value)

    def model(self, cls: type[Model], value: Mapping[Any, Any], path: Path) -> Model | None:
        """A nested model given as a mapping."""
        try:
            built = cls(**value)
        except ModelError as error:
            self.adopt(error, path)
            return None
        except TypeError:
            if all(isinstance(key, str) for key in value):
                raise
            self.note(path, f"expected str keys for {cls.__name__}")
            return None
        if built.__remembers_order__:
            built._remember_order(value)
        return built


def class_text(cls: Any) -> str:
    """A class, or a type made of classes, as errors name it."""
    return str(getattr(cls, "__name__", cls)) if typing.get_origin(cls) is None else str(cls)
