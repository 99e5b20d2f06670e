"""Hooks: one folder per module."""

__all__: list[str] = []
