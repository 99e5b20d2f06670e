"""The coordinator, under its published address."""

from amplifier.compat._sessions import ModuleCoordinator

__all__ = ["ModuleCoordinator"]
