"""Checking providers."""

from __future__ import annotations

from typing import Any, ClassVar

from ..models import ProviderInfo
from ._module import ModuleValidator
from .base import (  # noqa: F401 — where suites look for them
    ValidationCheck,
    ValidationResult,
    check_on_session_ready,
    import_module_from_path,
)

__all__ = ["ProviderValidator"]


class ProviderValidator(ModuleValidator):
    """Is this a provider?"""

    KIND: ClassVar[str] = "provider"
    POINT: ClassVar[str] = "providers"
    CONTRACT: ClassVar[str] = "Provider"
    MEMBERS: ClassVar[tuple[str, ...]] = ("name", "get_info", "list_models", "complete", "parse_tool_calls")

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        self._check_text(result, instance, "name")
        if self._check_callable(result, instance, "get_info"):
            self._check_info(result, instance)
        self._check_async(result, instance, "list_models")
        self._check_async(result, instance, "complete", 1, "request")
        if self._check_callable(result, instance, "parse_tool_calls"):
            result.note("provider_parse_tool_calls", True, "Provider.parse_tool_calls() exists and is callable")

    _check_provider_methods = _check_members

    def _check_info(self, result: ValidationResult, instance: Any) -> None:
        try:
            info = instance.get_info()
        except Exception as exc:  # noqa: BLE001 — the module is third-party code
            result.note("provider_get_info", False, f"Error calling Provider.get_info(): {exc}", failing="warning")
            return
        good = isinstance(info, ProviderInfo)
        message = "Provider.get_info() returns ProviderInfo"
        if not good:
            message = f"Provider.get_info() should return ProviderInfo, got {type(info).__name__}"
        result.note("provider_get_info", good, message)


def _implements_provider_interface(obj: Any) -> bool:
    return ProviderValidator()._implements(obj)
