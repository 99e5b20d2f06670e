"""Classes that are not ours: the cattrs converter, which knows our models and everything cattrs knows besides.

So a class of yours (attrs, dataclass, enum, a union, ``list[Message]``) may hold a model of ours. Above: `_converter`,
which imports this file when it is first needed. Below: `_reading`, the careful way to read a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cattrs import BaseValidationError, Converter
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    IterableValidationError,
    StructureHandlerNotFoundError,
)

from amplifier.errors import ModelError
from amplifier.models._definition.base import Model
from amplifier.models._definition.field_types import is_understood, shape_of
from amplifier.models._definition.problems import Building, Path, class_text, type_name

from .converter import to_dict
from .strict_reader import read_carefully


def structured(cls: Any, data: Any) -> Any:
    """An instance of any class from JSON values, read carefully.

    Raises:
        ModelError: The values do not fit; everything wrong with them is listed.
    """
    try:
        return converter.structure(data, cls)
    except (BaseValidationError, StructureHandlerNotFoundError) as error:
        building = Building()
        _note(error, None, building)
        raise ModelError(building.problems, subject=class_text(cls)) from error
    except RecursionError:
        raise ModelError([("", "nested too deeply")], subject=class_text(cls)) from None


def _is_ours(cls: Any) -> bool:
    return is_understood(shape_of(cls))


def _structure_hook(cls: Any) -> Callable[[Any, Any], Any]:
    shape, subject = shape_of(cls), class_text(cls)
    return lambda data, _: read_carefully(shape, data, subject)


def _is_model(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Model)


def _new_converter() -> Converter:
    made = Converter()
    made.register_structure_hook_factory(_is_ours, _structure_hook)
    made.register_unstructure_hook_factory(_is_model, lambda cls: to_dict)
    return made


converter = _new_converter()


def _note(error: BaseException, path: Path, building: Building) -> None:
    """Turn what cattrs reports about somebody else's class into our list of problems."""
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        placed, unplaced = error.group_exceptions()
        for inner, note in placed:
            # The index may be the key of a mapping, whatever the annotation says.
            key: Any = note.name if isinstance(note, AttributeValidationNote) else note.index
            _note(inner, (path, key if isinstance(key, (str, int)) else str(key)), building)
        for inner in unplaced:
            _note(inner, path, building)
    elif isinstance(error, ModelError):
        building.adopt(error, path)
    elif isinstance(error, KeyError):
        building.note(path, "required, but missing")
    else:
        building.note(path, str(error) or type_name(error))
