"""Showing a message, as published modules import it."""

from amplifier.contracts import DisplaySystem

__all__ = ["DisplaySystem"]
