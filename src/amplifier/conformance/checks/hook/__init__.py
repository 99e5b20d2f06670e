"""Checks of the hook contract."""
