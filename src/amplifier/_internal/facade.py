"""The lazy façade of ``amplifier``: every name is imported on first use."""

from __future__ import annotations

import sys
from importlib import import_module

# This equals the version in the package's metadata, which takes the command line too long to read.
__version__ = "0.1.0"

_FACADE = "amplifier"

# The packages that define the names, the lowest layer first so that a search imports few others.
_SOURCES = ("errors", "models", "contracts", "loading", "kernel", "functions", "agents")

# Attributes that need no separate import statement.
_SUBMODULES = frozenset({*_SOURCES, "compat", "events", "plan"})


def import_name(name: str) -> object:
    """Import a name and store it in the façade, as its ``__getattr__`` (PEP 562).

    Raises:
        AttributeError: The name does not exist.
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
    """Return all names of the façade, imported or not, as its ``__dir__``."""
    facade = sys.modules[_FACADE]
    return sorted({*vars(facade), *facade.__all__, *_SUBMODULES} - {"TYPE_CHECKING"})
