"""The coordinator, as published modules import it."""

from amplifier.compat._sessions import ModuleCoordinator

__all__ = ["ModuleCoordinator"]
