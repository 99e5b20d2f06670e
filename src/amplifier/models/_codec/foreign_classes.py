"""Classes that are not models: the cattrs converter, which knows the models and everything cattrs knows besides.

So an attrs class, a dataclass, an enum, a union or a ``list[Message]`` may hold a model. `converter` imports this file when
it is first needed.
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
from amplifier.models._definition.base import Coercion, Model
from amplifier.models._definition.field_types import field_type_of, is_understood
from amplifier.models._definition.problems import Path, class_text, type_name

from .strict_reader import read_strictly


def structured(cls: Any, data: Any) -> Any:
    """An instance of any class from JSON values, with all problems listed.

    Raises:
        ModelError: The values do not fit; everything wrong with them is listed.
    """
    try:
        return _converter.structure(data, cls)
    except (BaseValidationError, StructureHandlerNotFoundError) as error:
        coercion = Coercion()
        _note(error, None, coercion)
        raise ModelError(coercion.problems, subject=class_text(cls)) from error
    except RecursionError:
        raise ModelError([("", "nested too deeply")], subject=class_text(cls)) from None


def unstructured(value: Any) -> Any:
    """The members of an instance; models among them are left as they are, for `plain_values.JsonConversion`."""
    return _converter.unstructure(value)


def _structure_hook(cls: Any) -> Callable[[Any, Any], Any]:
    field_type, subject = field_type_of(cls), class_text(cls)
    return lambda data, _: read_strictly(field_type, data, subject)


def _is_model(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Model)


_converter = Converter()
_converter.register_structure_hook_factory(lambda cls: is_understood(field_type_of(cls)), _structure_hook)
_converter.register_unstructure_hook_func(_is_model, lambda value: value)


def _note(error: BaseException, path: Path, coercion: Coercion) -> None:
    """Turn what cattrs reports about a class that is no model into our list of problems."""
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        placed, unplaced = error.group_exceptions()
        for inner, note in placed:
            # The index may be the key of a mapping, whatever the annotation is.
            key: Any = note.name if isinstance(note, AttributeValidationNote) else note.index
            _note(inner, (path, key if isinstance(key, (str, int)) else str(key)), coercion)
        for inner in unplaced:
            _note(inner, path, coercion)
    elif isinstance(error, ModelError):
        coercion.adopt(error, path)
    elif isinstance(error, KeyError):
        coercion.note(path, "required, but missing")
    else:
        coercion.note(path, str(error) or type_name(error))
