"""The coordinator, as published modules import it."""

from amplifier.compat._sessions.coordinator import ModuleCoordinator

__all__ = ["ModuleCoordinator"]
