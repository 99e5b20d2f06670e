"""The structural suite of hook modules: inherit from it in a module's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["HookStructuralTests"]


class HookStructuralTests:
    """What the validator of hook modules reports about the module under test."""

    @pytest.mark.asyncio
    async def test_structural_validation(self, module_path: Path | None) -> None:
        """The module passes all structural checks."""
        if module_path is None:
            pytest.skip("No module path detected")
        from .. import HookValidator  # noqa: PLC0415 — tests patch the name there

        result = await HookValidator().validate(module_path)
        if not result.passed:
            problems = "\n".join(f"  - {check.name}: {check.message}" for check in result.errors)
            pytest.fail(f"Structural validation failed:\n{problems}")
