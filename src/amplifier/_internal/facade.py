"""What ``import amplifier`` does: it has the version, and makes its names available, each of which is imported when it is first used.

The names, and for type checkers where they come from, are in ``amplifier/__init__.py``.
"""

from __future__ import annotations

import sys
from importlib import import_module

__version__ = "0.1.0"
"""The same as in the metadata of the package, reading which takes longer than the command line does."""

_FACADE = "amplifier"

_SOURCES = ("errors", "models", "contracts", "loading", "kernel", "functions", "agents")
"""Where the names come from, the lowest layer first, so that a search imports little in vain."""

_SUBMODULES = frozenset({*_SOURCES, "compat", "events", "plan"})
"""Attributes after ``import amplifier``, without an import of their own."""


def import_name(name: str) -> object:
    """The ``__getattr__`` of the façade (PEP 562): import a name, and keep it there.

    Raises:
        AttributeError: There is no such name.
    """
    facade = sys.modules[_FACADE]
    if name in _SUBMODULES:
        return import_module(f"{_FACADE}.{name}")
    if name in facade.__all__:
        for source in _SOURCES:
            package = import_module(f"{_FACADE}.{source}")
            if name in package.__all__:
                value: object = getattr(package, name)
                setattr(facade, name, value)
                return value
    raise AttributeError(f"module {_FACADE!r} has no attribute {name!r}")


def names() -> list[str]:
    """The ``__dir__`` of the façade: all names, those not yet imported included."""
    facade = sys.modules[_FACADE]
    return sorted({*vars(facade), *facade.__all__, *_SUBMODULES} - {"TYPE_CHECKING"})
