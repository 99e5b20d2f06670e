"""Stopping, as published modules import it."""

from amplifier.kernel import CancellationState, CancellationToken

__all__ = ["CancellationState", "CancellationToken"]
