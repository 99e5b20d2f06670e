"""The session, under its published address."""

from amplifier.compat._sessions import AmplifierSession

__all__ = ["AmplifierSession"]
