"""Checking context managers."""

from __future__ import annotations

from typing import Any, ClassVar

from ._module import ModuleValidator
from .base import (  # noqa: F401 — where suites look for them
    ValidationCheck,
    ValidationResult,
    check_on_session_ready,
    import_module_from_path,
)

__all__ = ["ContextValidator"]

_METHODS = (
    ("add_message", 1, "message"),
    ("get_messages_for_request", 0, ""),
    ("get_messages", 0, ""),
    ("set_messages", 1, "messages"),
    ("clear", 0, ""),
)


class ContextValidator(ModuleValidator):
    """Is this a context manager?"""

    KIND: ClassVar[str] = "context"
    POINT: ClassVar[str] = "context"
    CONTRACT: ClassVar[str] = "ContextManager"
    MEMBERS: ClassVar[tuple[str, ...]] = tuple(method for method, _, _ in _METHODS)

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        for method, least, expected in _METHODS:
            self._check_async(result, instance, method, least, expected)

    _check_context_methods = _check_members


def _implements_context_manager_interface(obj: Any) -> bool:
    return ContextValidator()._implements(obj)
