"""Packages of higher layers that set the hooks of `ModuleLoader`, by name: they are imported when there is the first loader.

`amplifier.loading` knows none of them, and ``import amplifier`` does not have to import them.
"""

from __future__ import annotations

from importlib import import_module

_packages: dict[str, None] = {}


def extend_loaders_by(package: str) -> None:
    """Have a package imported before a loader is used.

    Args:
        package: Its import sets the hooks.
    """
    _packages[package] = None


def import_loader_extensions() -> None:
    """Import those packages, and wait for another thread that does."""
    for package in _packages:
        import_module(package)
