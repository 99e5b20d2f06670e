"""The session, as published modules import it."""

from amplifier.kernel import AmplifierSession

__all__ = ["AmplifierSession"]
