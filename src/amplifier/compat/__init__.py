"""Run published Amplifier modules unchanged: ``import amplifier_core`` gives this kernel.

A `ModuleLoader` installs the alias when a module that it loads imports ``amplifier_core`` and no
other package of that name exists. ``python -m amplifier.compat`` runs a command with it, and
``pytest -p amplifier.compat.pytest`` runs a test suite. docs/reference/compat.md lists the intended
differences from the published kernel.
"""

from ._alias import install, is_installed, uninstall

__all__ = ["install", "is_installed", "uninstall"]
