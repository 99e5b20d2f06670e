"""Reading a model from JSON values with care: every problem noted with its path, lax where the constructor is lax.

This is the truth about what JSON fits which model. `_fast_reading` accepts a subset of it and leaves the rest to this
file. Below: `_plain` (free-form values), `_shapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amplifier.errors import ModelError
from amplifier.models._definition.base import Model, OpenModel
from amplifier.models._definition.field_types import Shape
from amplifier.models._definition.problems import Building, Path, short, type_name

from .plain_values import PlainWalk


class Reading(Building):
    """Construction with JSON's rules: free-form values are checked and copied all the way down."""

    __slots__ = ("_walk",)

    def __init__(self) -> None:
        super().__init__()
        self._walk = PlainWalk(self.problems)

    def text(self, value: str, path: Path) -> str:
        return self._walk.text(value, path)

    def integer(self, value: int, path: Path) -> int | None:
        checked: int | None = self._walk.integer(value, path)
        return checked

    def number(self, value: float, path: Path) -> float | None:
        return self._walk.number(value, path)

    def free(self, value: Any, path: Path) -> Any:
        return self._walk.start(value, path)

    def free_dict(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any] | None:
        plain: dict[str, Any] | None = self._walk.start(value, path)
        return plain

    def free_list(self, value: Iterable[Any], path: Path) -> list[Any] | None:
        plain: list[Any] | None = self._walk.start(value, path)
        return plain

    def model(self, cls: type[Model], value: Mapping[Any, Any], path: Path) -> Model | None:
        before = len(self.problems)
        known: dict[str, Any] = {}
        for field in cls.__model_fields_of__:
            if field.name in value:
                known[field.name] = field.shape.coerce(value[field.name], (path, field.name), self)
            elif field.is_required:
                self.note((path, field.name), "required, but missing")
        unknown = self._unknown_members(cls, value, path)
        if len(self.problems) != before:
            return None
        try:
            built = cls(**known)
        except ModelError as error:
            self.adopt(error, path)
            return None
        if isinstance(built, OpenModel):
            built.extra = unknown
        if built.__remembers_order__:
            built._remember_order(value)
        return built

    def _unknown_members(self, cls: type[Model], value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        declared = {field.name for field in cls.__model_fields_of__}
        unknown = {}
        for name, member in value.items():
            if not isinstance(name, str):
                self.note(path, f"expected str keys, got the {type_name(name)} key {short(name)}")
            elif issubclass(cls, OpenModel) and name not in declared:
                unknown[self.text(name, path)] = self.free(member, (path, name))
        return unknown


def read_carefully(shape: Shape, value: Any, subject: str) -> Any:
    """Bring a JSON value into a shape.

    Raises:
        ModelError: With everything that is wrong.
    """
    reading = Reading()
    built = shape.coerce(value, None, reading)
    reading.finish(subject)
    return built
