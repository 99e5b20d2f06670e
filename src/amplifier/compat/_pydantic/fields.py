"""`model_fields`: a model's fields as pydantic describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from amplifier.models import HookResult
from amplifier.models._base import Model, declared_fields, is_required

OURS: Final = frozenset({(HookResult, "approval_gates")})
"""Fields that the published models do not have; shown only while they hold something."""


@attrs.frozen
class FieldView:
    """One field as pydantic describes it, with the attributes that published code reads.

    Attributes:
        annotation: The resolved type.
        default: The default; ``...`` for a required field, None where a factory makes it.
        default_factory: Makes the default, if there is one to make it.
    """

    annotation: Any
    default: Any
    default_factory: Callable[[], Any] | None
    description: None = None
    alias: None = None

    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is ...

    def get_default(self, *, call_default_factory: bool = False) -> Any:
        """The default, made on request."""
        return self.default_factory() if self.default_factory and call_default_factory else self.default


def fields_of(cls: type[Model]) -> dict[str, FieldView]:
    """The declared fields by name."""
    return {field.name: _view_of(field) for field in published_fields(cls)}


def default_of(field: attrs.Attribute[Any]) -> Any:
    """The default of a field that is not required, made anew where a factory makes it."""
    factory = _factory_of(field)
    return field.default if factory is None else factory()


def _factory_of(field: attrs.Attribute[Any]) -> Callable[[], Any] | None:
    default: Any = field.default
    return default.factory if isinstance(default, attrs.Factory) else None  # type: ignore[arg-type]


def _view_of(field: attrs.Attribute[Any]) -> FieldView:
    factory = _factory_of(field)
    default = ... if is_required(field) else None if factory is not None else field.default
    return FieldView(field.type, default, factory)


def published_fields(cls: type[Model]) -> list[attrs.Attribute[Any]]:
    """The declared fields that the published model of that name has as well."""
    ours = {name for owner, name in OURS if issubclass(cls, owner)}
    return [field for field in declared_fields(cls) if field.name not in ours]
