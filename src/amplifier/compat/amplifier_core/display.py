"""The display system, under its published address."""

from amplifier.contracts import DisplaySystem

__all__ = ["DisplaySystem"]
