"""Structural suites that a module's tests inherit from; they need pytest and the published plugin's fixtures."""

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
    """What the validator of a type reports about the module under test; the suites below are for tests to inherit from."""

    validator: ClassVar[Any]

    @pytest.mark.asyncio
    async def test_structural_validation(self, module_path: Path | None) -> None:
        """The module passes all structural checks."""
        if module_path is None:
            pytest.skip("No module path detected")
        result = await self.validator().validate(module_path)
        if not result.passed:
            problems = "\n".join(f"  - {check.name}: {check.message}" for check in result.errors)
            pytest.fail(f"Structural validation failed:\n{problems}")


class ContextStructuralTests(_StructuralTests):  # noqa: D101 — see its base
    validator = ContextValidator


class HookStructuralTests(_StructuralTests):  # noqa: D101 — see its base
    validator = HookValidator


class OrchestratorStructuralTests(_StructuralTests):  # noqa: D101 — see its base
    validator = OrchestratorValidator


class ProviderStructuralTests(_StructuralTests):  # noqa: D101 — see its base
    validator = ProviderValidator


class ToolStructuralTests(_StructuralTests):  # noqa: D101 — see its base
    validator = ToolValidator
