"""Checking orchestrators."""

from __future__ import annotations

from typing import Any, ClassVar

from ._module import ModuleValidator
from .base import (  # noqa: F401 — where suites look for them
    ValidationCheck,
    ValidationResult,
    check_on_session_ready,
    import_module_from_path,
)

__all__ = ["OrchestratorValidator"]


class OrchestratorValidator(ModuleValidator):
    """Is this an orchestrator?"""

    KIND: ClassVar[str] = "orchestrator"
    POINT: ClassVar[str] = "orchestrator"
    CONTRACT: ClassVar[str] = "Orchestrator"
    MEMBERS: ClassVar[tuple[str, ...]] = ("execute",)

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        self._check_async(result, instance, "execute", 5, "prompt, context, providers, tools, hooks")

    _check_orchestrator_methods = _check_members


def _implements_orchestrator_interface(obj: Any) -> bool:
    return OrchestratorValidator()._implements(obj)
