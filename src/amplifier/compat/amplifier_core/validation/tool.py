"""Checking tools."""

from __future__ import annotations

from typing import Any, ClassVar

from ._module import ModuleValidator
from .base import (  # noqa: F401 — where suites look for them
    ValidationCheck,
    ValidationResult,
    check_on_session_ready,
    import_module_from_path,
)

__all__ = ["ToolValidator"]


class ToolValidator(ModuleValidator):
    """Is this a tool?"""

    KIND: ClassVar[str] = "tool"
    POINT: ClassVar[str] = "tools"
    CONTRACT: ClassVar[str] = "Tool"
    MEMBERS: ClassVar[tuple[str, ...]] = ("name", "description", "execute")

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


def _implements_tool_interface(obj: Any) -> bool:
    return ToolValidator()._implements(obj)
