"""Cancellation, under its published address."""

from amplifier.kernel import CancellationState, CancellationToken

__all__ = ["CancellationState", "CancellationToken"]
