"""The session, as published modules import it."""

from amplifier.compat._sessions.session import AmplifierSession

__all__ = ["AmplifierSession"]
