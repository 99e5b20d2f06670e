"""Structural suites for a module's tests to inherit from. They need pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from . import (
    ContextValidator,
    HookValidator,
    OrchestratorValidator,
    ProviderValidator,
    ToolValidator,
)

__all__ = [
    "ContextStructuralTests",
    "HookStructuralTests",
    "OrchestratorStructuralTests",
    "ProviderStructuralTests",
    "ToolStructuralTests",
]


class _StructuralTests:
    """Runs the validator of a type on the module under test."""

    validator: ClassVar[Any]

    @pytest.mark.asyncio
    async def test_structural_validation(self, module_path: Path | None) -> None:
        """Check that the module passes all structural checks."""
        if module_path is None:
            pytest.skip("No module path detected")
        result = await self.validator().validate(module_path)
        if not result.passed:
            problems = "\n".join(f"  - {check.name}: {check.message}" for check in result.errors)
            pytest.fail(f"Structural validation failed:\n{problems}")


class ContextStructuralTests(_StructuralTests):
    """The structural suite of context managers."""

    validator = ContextValidator


class HookStructuralTests(_StructuralTests):
    """The structural suite of hook modules."""

    validator = HookValidator


class OrchestratorStructuralTests(_StructuralTests):
    """The structural suite of orchestrators."""

    validator = OrchestratorValidator


class ProviderStructuralTests(_StructuralTests):
    """The structural suite of providers."""

    validator = ProviderValidator


class ToolStructuralTests(_StructuralTests):
    """The structural suite of tools."""

    validator = ToolValidator
