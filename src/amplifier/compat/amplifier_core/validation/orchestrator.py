"""Checking orchestrators."""

from __future__ import annotations

from typing import Any

from ._module import ModuleValidator
from .base import ValidationResult

__all__ = ["OrchestratorValidator"]


class OrchestratorValidator(ModuleValidator):
    """Is this an orchestrator?"""

    KIND = "orchestrator"
    POINT = "orchestrator"
    CONTRACT = "Orchestrator"
    MEMBERS = ("execute",)

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        self._check_async(result, instance, "execute", 5, "prompt, context, providers, tools, hooks")

    _check_orchestrator_methods = _check_members


def _implements_orchestrator_interface(instance: Any) -> bool:
    return OrchestratorValidator()._implements(instance)
