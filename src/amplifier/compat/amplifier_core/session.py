"""The session, as published modules import it."""

from amplifier.compat._sessions import AmplifierSession

__all__ = ["AmplifierSession"]
