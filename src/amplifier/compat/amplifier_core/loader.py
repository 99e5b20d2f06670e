"""The loader, as published modules import it."""

from amplifier.errors import ModuleLoadError
from amplifier.loading import ModuleLoader

__all__ = ["ModuleLoader", "ModuleValidationError"]


class ModuleValidationError(ModuleLoadError):
    """The module was imported, but it is not a module."""
