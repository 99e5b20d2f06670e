"""The coordinator, as published modules import it."""

from amplifier.kernel import ModuleCoordinator

__all__ = ["ModuleCoordinator"]
