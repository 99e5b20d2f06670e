"""The coordinator, as published modules import it; suites read the next line."""

from amplifier_core._engine import RustCoordinator as ModuleCoordinator  # type: ignore[import-not-found]

__all__ = ["ModuleCoordinator"]
