"""``pytest -p amplifier.compat.pytest`` runs a published module's suite on this kernel."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._alias import ALIAS, export_alias, install, withdraw_alias

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_addoption", "pytest_unconfigure"]

_ENTRY_POINT = "amplifier_module"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Install the alias and the published fixtures."""
    # Pytest calls this before it loads the plugins of installed distributions. The mirror's plugin
    # takes the name of the published one, so that an installed wheel isn't loaded.
    install()
    export_alias()
    if not pluginmanager.has_plugin(_ENTRY_POINT):
        pluginmanager.register(importlib.import_module(f"{ALIAS}.pytest_plugin"), _ENTRY_POINT)


def pytest_unconfigure() -> None:
    """Restore the environment. The alias stays, because pytest still uses its modules."""
    withdraw_alias()
