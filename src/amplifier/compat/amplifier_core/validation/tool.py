"""Checking tools."""

from __future__ import annotations

from typing import Any

from ._module import ModuleValidator
from .base import ValidationResult

__all__ = ["ToolValidator"]


class ToolValidator(ModuleValidator):
    """Is this a tool?"""

    KIND = "tool"
    POINT = "tools"
    CONTRACT = "Tool"
    MEMBERS = ("name", "description", "execute")

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        self._check_text(result, instance, "name")
        self._check_text(result, instance, "description", empty="warning")
        schema = getattr(instance, "input_schema", {})
        message = f"Tool.input_schema should return a dict, got {type(schema).__name__}"
        if isinstance(schema, dict):
            message = f"Tool.input_schema returns dict with {len(schema)} properties"
        result.note("tool_input_schema", isinstance(schema, dict), message, failing="warning")
        self._check_async(result, instance, "execute", 1, "input")

    _check_tool_methods = _check_members


def _implements_tool_interface(instance: Any) -> bool:
    return ToolValidator()._implements(instance)
