"""Reads a model from JSON values: every problem noted with its path, lax where the constructor is lax.

This defines which JSON fits which model; `fast_reader` accepts a subset of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier.errors import ModelError
from amplifier.models._definition.base import FieldType, Model, OpenModel
from amplifier.models._definition.problems import Path, short, type_name

from .plain_values import JsonConversion


class _JsonReading(JsonConversion):
    """Coercion by JSON's rules: free-form values are checked and copied completely."""

    __slots__ = ()

    free = free_dict = free_list = JsonConversion.convert

    def model(self, cls: type[Model], value: Mapping[Any, Any], path: Path) -> Model | None:
        before = len(self.problems)
        known: dict[str, Any] = {}
        for field in cls.__model_fields_of__:
            if field.name in value:
                known[field.name] = field.type.coerce(value[field.name], (path, field.name), self)
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


def read_strictly(field_type: FieldType, value: Any, subject: str) -> Any:
    """Coerce a JSON value to a field type.

    Raises:
        ModelError: With everything that is wrong.
    """
    reading = _JsonReading()
    built = field_type.coerce(value, None, reading)
    reading.finish(subject)
    return built
