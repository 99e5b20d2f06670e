"""Stored and running sessions on this machine."""
