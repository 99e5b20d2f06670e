"""``pytest -p amplifier.compat.pytest``: a published module's own suite runs on this kernel.

Importing this file changes nothing; pytest calls it when it registers it, which is before it looks for the plugins of
installed distributions. An installed wheel of the published kernel therefore does not get a word in: its plugin is
registered from the mirror first, under the name its entry point has.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._alias.child_processes import keep_out, let_in
from ._alias.finder import ALIAS
from ._alias.install import install

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_addoption", "pytest_unconfigure"]

_ENTRY_POINT = "amplifier_module"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Install the alias and the published fixtures; the first hook a plugin gets, and it gets it at once."""
    install()
    let_in()
    if not pluginmanager.has_plugin(_ENTRY_POINT):
        pluginmanager.register(importlib.import_module(f"{ALIAS}.pytest_plugin"), _ENTRY_POINT)


def pytest_unconfigure() -> None:
    """Leave the environment as it was; the alias stays, because pytest may still be asked about what it has imported."""
    keep_out()
