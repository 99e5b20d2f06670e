"""``pytest -p amplifier.compat.pytest``: a published module's own suite runs on this kernel.

Importing this file changes nothing; pytest calls it when it registers it, which is before it loads the plugins of
installed distributions. The plugin of an installed wheel of the published kernel is therefore not loaded: the one of the
mirror is registered first, under the name of its entry point.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._alias import ALIAS, export_alias, install, withdraw_alias

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_addoption", "pytest_unconfigure"]

_ENTRY_POINT = "amplifier_module"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Install the alias and the published fixtures; pytest calls this hook as soon as it registers a plugin."""
    install()
    export_alias()
    if not pluginmanager.has_plugin(_ENTRY_POINT):
        pluginmanager.register(importlib.import_module(f"{ALIAS}.pytest_plugin"), _ENTRY_POINT)


def pytest_unconfigure() -> None:
    """Restore the environment; the alias stays, because pytest still uses what it has imported."""
    withdraw_alias()
